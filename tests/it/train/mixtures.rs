//! Trainings and searches on sets that are mixed by weights, as a person runs them.

use super::resume::{copy_folder, lively, lively_settings};
use super::{Workplace, adapter_bytes, column};
use crate::mocked::{errors_of, folder_with, peft_tune};

/// Two sets of rows, a held-out share of each.
fn mixed(weights: [f64; 2]) -> Workplace {
    let place = lively();
    let rows = std::fs::read_to_string(place.path("rows.jsonl")).unwrap();
    let rows: Vec<&str> = rows.lines().collect();
    let (first, second) = rows.split_at(rows.len() / 4);
    for (name, rows) in [("first.jsonl", first), ("second.jsonl", second)] {
        std::fs::write(place.path(name), rows.join("\n") + "\n").unwrap();
    }
    write(&place, weights, "2, gradient_accumulation: 2");
    place
}

fn write(place: &Workplace, [first, second]: [f64; 2], micro_batch: &str) {
    let data = format!(
        "{{train: [{{file: first.jsonl, weight: {first}}}, {{file: second.jsonl, weight: {second}}}], held_out: 0.2, format: tokenized}}"
    );
    let batch = format!("{{micro_batch: {micro_batch}, sequence_length: 256}}");
    let mut settings = lively_settings().to_vec();
    settings.extend([("data", data.as_str()), ("batch", batch.as_str())]);
    place.write_recipe(&settings);
}

#[test]
fn a_mixture_goes_on_to_the_same_bits_and_other_weights_are_refused() {
    let place = mixed([3.0, 1.0]);
    let arguments = [
        "--output",
        "whole",
        "--checkpoint-every",
        "5",
        "--keep-checkpoints",
        "9",
    ];
    let whole = place.train(&arguments);
    copy_folder(&place.path("whole"), &place.path("parts"));
    std::fs::remove_file(place.path("parts/result.json")).unwrap();
    std::fs::remove_dir_all(place.path("parts/checkpoints/step-00000014")).unwrap();
    copy_folder(&place.path("parts"), &place.path("others"));
    let rest = place.train(&["--output", "parts", "--resume"]);
    assert_eq!(column(&rest, "step", "loss"), column(&whole, "step", "loss")[10..]);
    assert_eq!(adapter_bytes(&place.path("parts")), adapter_bytes(&place.path("whole")));

    // Shares decide, however they are written.
    write(&place, [0.75, 0.25], "2, gradient_accumulation: 2");
    let same = place.train(&["--output", "shares"]);
    assert_eq!(column(&same, "step", "loss"), column(&whole, "step", "loss"));
    write(&place, [0.25, 0.75], "2, gradient_accumulation: 2");
    let message = place.refused(2, &["--output", "others", "--resume"]);
    assert!(message.contains("data"), "{message}");
    let other = place.train(&["--output", "other"]);
    assert_ne!(column(&other, "step", "loss"), column(&whole, "step", "loss"));
}

#[test]
fn a_small_set_of_great_weight_is_told() {
    let place = mixed([9.0, 1.0]);
    let output = place.command(&["--output", "out"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("times through") && message.contains("first.jsonl, which has few rows for its weight"),
        "{message}"
    );
}

const SPACE: &str = "study: own\nmodel: ./base\ndata:\n  train:\n    - {file: train.jsonl, weight: 7}\n    - {file: held_out.jsonl, weight: 3}\n\
                     objectives: [throughput, loss]\n\
                     space: {rank: [2, 4, 8, 16], learning_rate: {low: 1e-3, high: 3e-2, scale: log}}\n\
                     trial: {sequence_length: 128}\nconfirm: none\nbudget: {trials: 3}\n";

#[test]
fn a_search_on_a_mixture_plans_resumes_and_notices_other_weights() {
    let folder = folder_with(SPACE);
    let folder = folder.path();
    let plan = peft_tune(folder, &["plan", "space.yaml"]);
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.status.success(), "{}", errors_of(&plan));
    for part in [
        "70% of the rows are of train.jsonl: an epoch sees 77% of its rows",
        "30% of the rows are of held_out.jsonl: an epoch goes 3.3 times through its rows",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        errors_of(&plan).contains("an epoch goes 3.3 times through"),
        "{}",
        errors_of(&plan)
    );
    let first = peft_tune(folder, &["search", "space.yaml"]);
    assert!(first.status.success(), "{}", errors_of(&first));
    // The same shares in other words are the same study.
    std::fs::write(
        folder.join("space.yaml"),
        SPACE
            .replace("weight: 7", "weight: 0.7")
            .replace("weight: 3", "weight: 0.3"),
    )
    .unwrap();
    let more = peft_tune(folder, &["search", "space.yaml", "--trials", "4"]);
    assert!(more.status.success(), "{}", errors_of(&more));
    std::fs::write(folder.join("space.yaml"), SPACE.replace("weight: 7", "weight: 1")).unwrap();
    let refused = peft_tune(folder, &["search", "space.yaml", "--trials", "5"]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors_of(&refused));
    assert!(
        errors_of(&refused).contains("training weights `0.7, 0.3` to `0.25, 0.75`"),
        "{}",
        errors_of(&refused)
    );
    let accepted = peft_tune(folder, &["search", "space.yaml", "--accept-changed-inputs"]);
    assert!(accepted.status.success(), "{}", errors_of(&accepted));
    let recipe = peft_tune(
        folder,
        &["export", "--study", "own", "--format", "recipe", "--output", "out"],
    );
    assert!(recipe.status.success(), "{}", errors_of(&recipe));
    let recipe = std::fs::read_to_string(folder.join("out/recipe.yaml")).unwrap();
    assert!(
        recipe.contains("weight: 0.25") && recipe.contains("weight: 0.75"),
        "{recipe}"
    );
}
