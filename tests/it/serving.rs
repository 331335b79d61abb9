//! What a token costs that is served, as a goal of a search and in its plan.

use std::path::Path;
use std::process::Output;

fn peft_tune(folder: &Path, arguments: &[&str]) -> String {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    let output: Output = command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Folder with a study of two ranks at two rates, whose models are served like this.
fn study(serve: &str) -> tempfile::TempDir {
    let folder = crate::folders::for_database();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let quickstart = quickstart.display();
    let space = format!(
        "study: own\nmodel: {quickstart}/base\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         objectives: [loss, serve_ms_per_token]\nserve: {serve}\n\
         space: {{rank: [2, 64], learning_rate: [1e-4, 1e-3], target_modules: all-linear}}\n\
         confirm: none\npruner: none\nsampler: grid\nbudget: {{trials: 5}}\n\
         trial: {{sequence_length: 64, profile_steps: 1, profile_warmup: 1, training_steps: 2, evaluation: {{rows: 4}}}}\n"
    );
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    folder
}

/// Rows of a query.
fn rows(folder: &Path, sql: &str) -> Vec<String> {
    let text = peft_tune(folder, &["query", sql, "--format", "csv"]);
    text.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn the_time_of_a_served_token_is_searched_and_measured_once_for_each_rank() {
    let folder = study("{mode: beside, batch: 2, context: 16, new_tokens: 4}");
    let folder = folder.path();
    peft_tune(folder, &["search", "space.yaml"]);
    // A rate takes the time of its rank over.
    let sql = "select count(distinct m.value) = count(distinct p.value), count(distinct m.value) >= 2, min(m.value > 0) \
               from trial_metric m join trial_param p on p.study = m.study and p.trial = m.trial \
               where p.name = 'rank' and m.name = 'serve_ms_per_token'";
    assert_eq!(rows(folder, sql), ["1,1,1"]);
    let sql = "select min(value > 0) from trial_metric where name = 'serve_tokens_per_s'";
    assert_eq!(rows(folder, sql), ["1"]);
    let report = folder.join("report.html");
    peft_tune(folder, &["report", "--output", report.to_str().unwrap()]);
    assert!(std::fs::read_to_string(report).unwrap().contains("serve_ms_per_token"));
}

#[test]
fn a_merged_adapter_is_measured_once_for_all_ranks() {
    let folder = study("{mode: merged, batch: 2, context: 16, new_tokens: 4}");
    let folder = folder.path();
    peft_tune(folder, &["search", "space.yaml"]);
    let sql = "select count(distinct p.value) >= 2, count(distinct m.value) from trial_metric m \
               join trial_param p on p.study = m.study and p.trial = m.trial \
               where p.name = 'rank' and m.name = 'serve_ms_per_token'";
    assert_eq!(rows(folder, sql), ["1,1"]);
}

#[test]
fn a_merged_adapter_is_predicted_to_cost_nothing_and_several_more_than_one() {
    let served = |serve: &str| {
        let folder = study(serve);
        let text = peft_tune(
            folder.path(),
            &["plan", "space.yaml", "--device", "H100 SXM", "--json", "--top", "9"],
        );
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut by_rank: Vec<(i64, f64)> = Vec::new();
        for one in plan["settings"].as_array().unwrap() {
            let rank = one["params"]["rank"].as_i64().unwrap();
            by_rank.push((rank, one["serve_ms_per_token"]["value"].as_f64().unwrap()));
        }
        by_rank.sort_by_key(|(rank, _)| *rank);
        assert_eq!(
            by_rank.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(),
            [2, 64],
            "{plan}"
        );
        [by_rank[0].1, by_rank[1].1]
    };
    let beside = served("{mode: beside, batch: 4, context: 16}");
    let merged = served("{mode: merged, batch: 4, context: 16}");
    let together = served("{mode: {together: 64}, batch: 64, context: 16}");
    assert_eq!(merged[0], merged[1]);
    assert!(
        0.0 < merged[0] && merged[0] < beside[0] && beside[0] <= beside[1],
        "{merged:?} {beside:?}"
    );
    assert!(
        together[1] > together[0] && together[1] > beside[1],
        "{together:?} {beside:?}"
    );
}
