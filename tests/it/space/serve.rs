//! `serve`, and the time of a served token as a goal or a bound.

use peft_tune::space::file::StudyFile;
use peft_tune::space::{SpaceError, Study};
use peft_tune_core::objective::Bound;
use peft_tune_core::study::{ServeMode, ServePlan};

use super::files::folder;

/// The study of a file with these values of `space` and these further lines.
fn study(space: &str, rest: &str) -> Result<Study, SpaceError> {
    let folder = folder();
    let path = folder.path().join("space.yaml");
    let text =
        format!("model: ./base\ndata: {{train: train.jsonl, held_out: held_out.jsonl}}\nspace: {{{space}}}\n{rest}\n");
    std::fs::write(&path, text).unwrap();
    StudyFile::read(&path)
}

fn serve_of(study: &Study) -> Option<ServePlan> {
    study.plan.measure.as_ref().and_then(|measure| measure.serve)
}

#[test]
fn a_model_is_served_where_that_is_asked_for() {
    let bounded = study(
        "rank: [4, 8]",
        "objectives: [loss]\nconstraints: {serve_ms_per_token: '<= 25'}",
    );
    let bounded = bounded.unwrap();
    assert_eq!(bounded.constraints[0].bound, Bound::AtMost(25.0));
    let usual = ServePlan {
        mode: ServeMode::Beside,
        batch: 1,
        context: None,
        new_tokens: 16,
    };
    assert_eq!(serve_of(&bounded), Some(usual));
    let together = study("rank: [4, 8]", "serve: {mode: {together: 8}, context: 1k}").unwrap();
    let expected = ServePlan {
        mode: ServeMode::Together(8),
        batch: 8,
        context: Some(1000),
        ..usual
    };
    assert_eq!(serve_of(&together), Some(expected));
    assert_eq!(serve_of(&study("rank: [4, 8]", "").unwrap()), None);
}

#[test]
fn what_changes_a_training_alone_does_not_change_how_its_model_is_served() {
    let space = "rank: [4, 8], dropout: [0, 0.1], learning_rate: [1e-4, 1e-3], micro_batch: [1, 2]";
    let study = study(space, "objectives: [throughput, loss, serve_ms_per_token]").unwrap();
    let changing = study
        .space
        .parameters
        .iter()
        .filter(|one| one.can_change("serve_ms_per_token"));
    let changing: Vec<&str> = changing.map(|one| one.name.as_str()).collect();
    assert_eq!(changing, ["rank"]);
    for metric in ["throughput", "peak_memory", "loss"] {
        assert!(study.space.parameters[0].can_change(metric), "{metric}");
    }
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    for (space, rest, told) in [
        (
            "rank: [4, 8]",
            "serve: {mode: {together: 1}}",
            "several adapters are 2 to 1024",
        ),
        ("rank: [4, 8]", "serve: {new_tokens: 1}", "write 2 or more"),
        (
            "rank: [4, 8]",
            "constraints: {serve_ms_per_token: '<= 0'}",
            "milliseconds above 0",
        ),
        (
            "rank: [4, 8]",
            "backend: trl\nserve: {batch: 2}",
            "trials in TRL measure no serving so far",
        ),
        (
            "rank: [4, 8]",
            "backend: trl\nobjectives: [loss, serve_ms_per_token]",
            "trials in TRL do not measure `serve_ms_per_token` so far",
        ),
        (
            "rank: [4, 8]",
            "backend: {command: [python3, train.py]}\nserve: {batch: 2}",
            "a command takes its settings",
        ),
    ] {
        let error = study(space, rest).unwrap_err().to_string();
        assert!(error.contains(told), "{rest}: {error}");
    }
}
