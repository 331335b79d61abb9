//! Studies that continue after their data or model hold something else.

use std::path::Path;

use crate::mocked::{errors_of, folder_with, peft_tune};

const SPACE: &str = "study: own\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\n\
                     objectives: [throughput, loss]\n\
                     space: {rank: [2, 4, 8, 16], learning_rate: {low: 1e-3, high: 3e-2, scale: log}}\n\
                     trial: {sequence_length: 128}\nconfirm: none\nbudget: {trials: 3}\n";

fn queried(folder: &Path, statement: &str) -> String {
    let output = peft_tune(folder, &["query", statement, "--format", "csv"]);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn begun() -> tempfile::TempDir {
    let folder = folder_with(SPACE);
    let output = peft_tune(folder.path(), &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", errors_of(&output));
    folder
}

/// Replaces a word of the data by another of the same length.
fn edit(folder: &Path) {
    let path = folder.join("train.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let edited = text.replacen("baker", "maker", 1);
    assert_ne!(text, edited);
    std::fs::write(path, edited).unwrap();
}

#[test]
fn a_study_does_not_continue_on_edited_data_unless_it_is_told_how() {
    let folder = begun();
    let folder = folder.path();
    assert!(
        peft_tune(folder, &["search", "space.yaml", "--trials", "4"])
            .status
            .success()
    );
    edit(folder);
    let refused = peft_tune(folder, &["search", "space.yaml", "--trials", "6"]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors_of(&refused));
    for part in ["training data", "train.jsonl", "--as", "--accept-changed-inputs"] {
        assert!(errors_of(&refused).contains(part), "{}", errors_of(&refused));
    }
    assert_eq!(
        queried(folder, "select study, count(*) from trial_summary"),
        "study,count(*)\nown,4"
    );

    // A study of its own leaves the first as it is.
    let other = peft_tune(folder, &["search", "space.yaml", "--as", "edited"]);
    assert!(other.status.success(), "{}", errors_of(&other));
    let counts = "select study, count(*) as n from trial_summary group by study order by study";
    assert_eq!(queried(folder, counts), "study,n\nedited,3\nown,4");
}

#[test]
fn accepted_changes_measure_every_setting_again_and_lose_nothing() {
    let folder = begun();
    let folder = folder.path();
    edit(folder);
    let accepted = peft_tune(folder, &["search", "space.yaml", "--accept-changed-inputs"]);
    assert!(accepted.status.success(), "{}", errors_of(&accepted));
    let counts = "select study, count(*) as n from trial_summary group by study order by study";
    assert_eq!(queried(folder, counts), "study,n\nown,3\nown before change 1,3");
    let shared = "select count(*) as n from (select a.trial from trial_param as a join trial_param as b
                  on a.name = b.name and a.value = b.value where a.study = 'own' and b.study = 'own before change 1'
                  group by a.trial, b.trial having count(*) = 2)";
    assert_eq!(queried(folder, shared), "n\n3", "each setting was measured again");
    // And from then on it is the same data.
    let again = peft_tune(folder, &["search", "space.yaml", "--trials", "4"]);
    assert!(again.status.success(), "{}", errors_of(&again));
}

#[test]
fn a_study_says_what_its_model_and_data_held() {
    let folder = begun();
    let inputs = queried(folder.path(), "select role from study_input order by role, position");
    for role in ["config", "weights", "tokenizer", "training data", "held-out data"] {
        assert!(inputs.contains(role), "{inputs}");
    }
    let empty = "select count(*) as n from model, data_set where model.fingerprint = '' or data_set.fingerprint = ''";
    assert_eq!(queried(folder.path(), empty), "n\n0");
}

#[test]
fn a_study_without_trials_makes_room_for_itself() {
    let folder = begun();
    let folder = folder.path();
    let output = peft_tune(folder, &["search", "space.yaml", "--as", "empty", "--trials", "0"]);
    assert_eq!(output.status.code(), Some(1), "{}", errors_of(&output));
    edit(folder);
    let output = peft_tune(
        folder,
        &[
            "search",
            "space.yaml",
            "--as",
            "empty",
            "--trials",
            "2",
            "--accept-changed-inputs",
        ],
    );
    assert!(output.status.success(), "{}", errors_of(&output));
    assert_eq!(queried(folder, "select count(*) as n from study"), "n\n2");
}
