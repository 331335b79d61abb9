//! Proposals of samplers, trial by trial: a study that was started with an earlier version continues as it would have
//! there.

use std::path::Path;

use serde_json::Value;

const SPACE: &str = "
study: proposals
space:
  rank: [2, 4, 8, 16]
  alpha_ratio: [1, 2]
  micro_batch: [1, 2, 4]
  learning_rate: {low: 1e-4, high: 1e-1, scale: log}
  gradient_checkpointing: [none, full]
  target_modules: [all-linear, [q_proj, v_proj]]
  precision: fp32
trial: {sequence_length: 64, profile_steps: 1, training_steps: 4, evaluation: {rows: 4}}
pruner: none
confirm: none
budget: {trials: 20}
";

/// Rank and micro-batch of twenty trials that are made up, stopped half way and resumed; `c` where activations are
/// checkpointed. Written down before params and metrics were held as bare values.
const PROPOSED: [(&str, &str); 4] = [
    (
        "random",
        "16/4 4/2c 8/2 2/1c 4/4 2/4 2/4c 2/2 16/4c 8/2c 16/4c 16/2 16/1 2/1c 8/4 \
         16/2 16/2 2/1c 4/4 2/1",
    ),
    (
        "sobol",
        "16/4 16/1 8/4 2/2c 2/1c 8/2 4/4c 16/2 2/2 8/1c 16/4c 8/2 2/1c 8/4 2/2c \
         16/1 4/2c 2/2 8/1c 16/4c",
    ),
    ("nsga2", "16/4 16/1 8/4 2/2c 2/1c 8/2 4/4c 16/2 2/2 8/1c 16/4c"),
    ("tpe", "16/4 16/1 8/4 2/2c 2/1c 8/2 4/4c 16/2 2/2 8/1c 2/2c"),
];

fn run(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = crate::program()
        .args(arguments)
        .current_dir(folder)
        .env("PEFT_TUNE_MOCK", "0")
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_CACHE", folder.join("cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn every_sampler_proposes_what_it_did() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let assets = assets.display();
    // Variants go by predicted costs, which each machine has its own of.
    let mut found = Vec::new();
    for (sampler, proposed) in PROPOSED {
        let folder = crate::folders::for_database();
        let head = format!(
            "sampler: {sampler}\nmodel: {assets}/base\ndata: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}"
        );
        std::fs::write(folder.path().join("space.yaml"), head + SPACE).unwrap();
        run(folder.path(), &["search", "space.yaml", "--trials", "11"]);
        run(folder.path(), &["search", "space.yaml"]);
        let sql = "select max(iif(name = 'rank', value, null)) || '/' || max(iif(name = 'micro_batch', value, null))
                   || max(iif(name = 'gradient_checkpointing', iif(value = 'full', 'c', ''), null)) as setting
                   from trial_param as p
                   where not exists (select 1 from trial_inherited as i where i.trial = p.trial and i.part = 'loss')
                   group by trial order by trial";
        let rows: Vec<Value> =
            serde_json::from_slice(&run(folder.path(), &["query", sql, "--format", "json"])).unwrap();
        let mut settings: Vec<&str> = rows.iter().map(|row| row["setting"].as_str().unwrap()).collect();
        assert_eq!(settings.len(), 20, "{sampler}");
        // What two of them propose behind the first variants depends on those.
        settings.truncate(proposed.split(' ').count());
        found.push((sampler, settings.join(" ")));
    }
    let proposed = PROPOSED.map(|(sampler, settings)| (sampler, settings.to_owned()));
    assert_eq!(found, proposed);
}
