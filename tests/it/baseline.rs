//! The setting that people would have used: tried first, wherever it comes from, and compared with.

use std::path::Path;
use std::process::Output;

use crate::calls::{quickstart, text};

fn space(baseline: &str) -> String {
    let quickstart = quickstart();
    format!(
        "study: own\nmodel: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         objectives: [throughput, loss]\n\
         space: {{rank: [2, 4], learning_rate: {{low: 1e-3, high: 3e-2, scale: log}}, micro_batch: 4}}\n\
         trial: {{sequence_length: 128}}\nconfirm: none\nbudget: {{trials: 4}}\n{baseline}"
    )
}

fn peft_tune(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder).env("PEFT_TUNE_MOCK", "0");
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

/// Text of a search, and the settings of its first trial.
fn searched(baseline: &str, arguments: &[&str], file: Option<(&str, &str)>) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("space.yaml"), space(baseline)).unwrap();
    if let Some((name, content)) = file {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let output = peft_tune(folder, &[&["search", "space.yaml"], arguments].concat());
    assert!(output.status.success(), "{}", text(&output));
    let first = "select trial.rank, learning_rate, schedule, target_modules from baseline join trial on trial.study_id = baseline.study_id and trial.number = baseline.trial";
    let first = peft_tune(folder, &["query", first, "--format", "csv"]);
    (
        text(&output),
        text(&first).lines().nth(1).unwrap_or_default().to_owned(),
    )
}

#[test]
fn the_first_trial_is_the_usual_setting_unless_somebody_says_another() {
    let (said, first) = searched("", &[], None);
    // As near to rank 16 as the space comes.
    assert!(first.starts_with("4,"), "{first}");
    assert!(said.contains("the baseline"), "{said}");
}

#[test]
fn a_baseline_outside_the_space_is_run_and_compared_all_the_same() {
    let (said, first) = searched(
        "baseline: {rank: 64, learning_rate: 0.1, schedule: linear}\n",
        &[],
        None,
    );
    assert_eq!(
        first.split(',').take(3).collect::<Vec<_>>(),
        ["64", "0.1", "linear"],
        "{said}"
    );
    assert!(
        said.contains("against the baseline (trial 0): ") && said.contains(" as fast"),
        "{said}"
    );
}

#[test]
fn a_config_of_another_tool_is_a_baseline() {
    let adapter = r#"{"peft_type": "LORA", "r": 32, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0}"#;
    let (_, first) = searched(
        "",
        &["--baseline", "adapter_config.json"],
        Some(("adapter_config.json", adapter)),
    );
    assert!(first.starts_with("32,") && first.contains("q_proj"), "{first}");
    let axolotl =
        "base_model: m\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlearning_rate: 0.0002\nlr_scheduler: cosine\n";
    let (_, first) = searched("", &["--baseline", "config.yml"], Some(("config.yml", axolotl)));
    assert!(first.starts_with("8,0.0002,cosine"), "{first}");
}

#[test]
fn a_baseline_that_says_nothing_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("space.yaml"), space("")).unwrap();
    std::fs::write(folder.join("notes.yaml"), "hello: world\n").unwrap();
    for (file, word) in [("notes.yaml", "TRL"), ("missing.yaml", "cannot read")] {
        let output = peft_tune(folder, &["search", "space.yaml", "--baseline", file]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(
            text(&output).contains(file) && text(&output).contains(word),
            "{}",
            text(&output)
        );
    }
    std::fs::write(folder.join("space.yaml"), space("baseline: {rang: 8}\n")).unwrap();
    let output = peft_tune(folder, &["search", "space.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("rang"), "{}", text(&output));
}
