//! Trials whose precision changes on their way: what they measure, and what is kept of it.

use std::path::Path;

/// Output of a command that succeeds.
fn peft_tune(folder: &Path, arguments: &[&str]) -> String {
    let mut command = crate::program();
    command
        .args(arguments)
        .current_dir(folder)
        .env("PEFT_TUNE_DB", folder.join("study.db"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn trials_measure_both_kinds_of_steps_and_keep_what_was_decided() {
    let folder = tempfile::tempdir().unwrap();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let quickstart = quickstart.display();
    let space = format!(
        "model: {quickstart}/base
data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}
objectives: [throughput, peak_memory, loss]
confirm: none
trial: {{sequence_length: 64, training_steps: 12, profile_steps: 3, profile_warmup: 2, evaluation: {{rows: 4}}}}
training: {{length: {{steps: 40}}}}
sampler: grid
space: {{precision: bf16, rank: 4, micro_batch: 4, precision_schedule: [fp32_10, none, adaptive_4]}}
budget: {{trials: 3}}
"
    );
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let said = peft_tune(folder.path(), &["search", "space.yaml"]);
    let folder = folder.path();
    let trials = peft_tune(folder, &["show", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&trials).unwrap();
    let of = |schedule: &str| {
        let trials = shown["trials"].as_array().unwrap().iter();
        let mut trials = trials.filter(|trial| trial["params"]["precision_schedule"] == schedule);
        let trial = trials.next().unwrap_or_else(|| panic!("{said}{trials:?}"));
        (trial["number"].as_u64().unwrap(), trial["state"]["metrics"].clone())
    };
    let number = |metrics: &serde_json::Value, name: &str| {
        metrics[name]
            .as_f64()
            .unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    let (_, plain) = of("none");
    let (first, mixed) = of("fp32_10");
    let (adaptive, decided) = of("adaptive_4");
    assert!(plain.get("train_fp32_steps").is_none());
    assert_eq!(number(&mixed, "train_fp32_steps"), 10.0);
    assert!(number(&decided, "train_fp32_steps") >= 4.0);
    // A quarter of the recipe's own training, which is longer than the trial's.
    let (fp32, own) = (
        number(&mixed, "throughput_fp32_steps"),
        number(&mixed, "throughput_own_steps"),
    );
    let expected = 1.0 / (0.25 / fp32 + 0.75 / own);
    assert!((number(&mixed, "throughput") / expected - 1.0).abs() < 1e-9);
    assert!(number(&mixed, "peak_memory") > number(&plain, "peak_memory"));
    assert_ne!(number(&mixed, "loss"), number(&plain, "loss"));

    let detail = |trial: u64| -> serde_json::Value {
        serde_json::from_str(&peft_tune(folder, &["show", "--trial", &trial.to_string(), "--json"])).unwrap()
    };
    let switch = detail(first)["precision_decisions"].clone();
    assert_eq!(switch[0]["step"], 10);
    assert_eq!(
        (&switch[0]["precision"], &switch[0]["cause"]),
        (&"bf16".into(), &"schedule".into())
    );
    let steps: Vec<u64> = detail(adaptive)["precision_decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [4, 8, 12]);
    let text = peft_tune(folder, &["show", "--trial", &adaptive.to_string()]);
    assert!(text.contains("noise scale") && text.contains("from then on"), "{text}");
    let sql = "select group_concat(step, ' ') from (select step from precision_decision order by step)";
    let rows = peft_tune(folder, &["query", sql, "--format", "csv"]);
    assert!(rows.contains("4 8 10 12"), "{rows}");
}
