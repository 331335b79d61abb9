//! `data.retain`, and metrics of what a training makes a model forget.

use peft_tune::space::file::StudyFile;
use peft_tune::space::{SpaceError, Study};
use peft_tune_core::objective::Bound;

use super::files::folder;

/// The study of a file with these keys in `data` and these further lines, beside which `other.jsonl` lies.
fn study(data: &str, rest: &str) -> Result<Study, SpaceError> {
    let folder = folder();
    std::fs::write(folder.path().join("other.jsonl"), "{}").unwrap();
    let path = folder.path().join("space.yaml");
    let text = format!(
        "model: ./base\ndata: {{train: train.jsonl, held_out: held_out.jsonl{data}}}\nspace: {{learning_rate: [1e-4, 1e-3]}}\n{rest}\n"
    );
    std::fs::write(&path, text).unwrap();
    StudyFile::read(&path)
}

#[test]
fn retained_rows_are_evaluated_where_a_file_is_named() {
    let bounded = "objectives: [throughput, loss]\nconstraints: {retained_loss_increase: '<= 2%'}";
    let bounded = study(", retain: other.jsonl", bounded).unwrap();
    assert_eq!(bounded.constraints[0].bound, Bound::AtMost(0.02));
    let accuracy = bounded.plan.train.unwrap().accuracy;
    assert!(accuracy.retained_loss && accuracy.is_required && !accuracy.base_kl);
    let retain = bounded.base.unwrap().data.retain;
    assert!(
        retain.len() == 1 && retain[0].is_absolute() && retain[0].ends_with("other.jsonl"),
        "{retain:?}"
    );
    // The rate changes what is learnt, and so what is forgotten, and nothing that it costs.
    let affects = bounded.space.parameters[0].affects.clone().unwrap();
    let is_affected = |metric: &str| affects.iter().any(|affected| affected == metric);
    assert!(
        is_affected("retained_loss_increase") && !is_affected("peak_memory"),
        "{affects:?}"
    );
    // Without a goal it is measured all the same, and no trial fails for want of it.
    let measured = study(", retain: [other.jsonl]", "objectives: [throughput]").unwrap();
    let accuracy = measured.plan.train.unwrap().accuracy;
    assert!(accuracy.retained_loss && !accuracy.is_required);
    assert!(study("", "").unwrap().plan.train.unwrap().accuracy.is_off());
}

#[test]
fn the_divergence_needs_no_file() {
    let study = study("", "objectives: [throughput, base_kl]").unwrap();
    let accuracy = study.plan.train.unwrap().accuracy;
    assert!(accuracy.base_kl && accuracy.is_required && !accuracy.retained_loss);
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let retain = ", retain: other.jsonl";
    for (data, rest, told) in [
        (
            "",
            "objectives: [retained_loss_increase]",
            "key `objectives[0]`: `retained_loss_increase` is measured on rows that the training has nothing to do with; name a file of \
             them as `data.retain`, or write `base_kl`, which needs none",
        ),
        (
            "",
            "constraints: {retained_loss_increase: '<= 2%'}",
            "key `constraints.retained_loss_increase`: `retained_loss_increase` is measured on rows",
        ),
        (
            retain,
            "constraints: {retained_loss_increase: '<= 2'}",
            "with a part of the loss before, at most all of it, such as 2% or 0.02",
        ),
        (
            retain,
            "constraints: {base_kl: '<= -1'}",
            "with nats from 0 on, such as 0.05",
        ),
        (
            "",
            "objectives: [base_kl]\ntrial: {evaluation: {base_kl: false}}",
            "key `trial.evaluation.base_kl`: `base_kl` is what this measures, and the study asks for it; remove this key",
        ),
        (", retain: nowhere.jsonl", "", "there is no file nowhere.jsonl"),
        (
            ", retain: train.jsonl",
            "",
            "has the study's own rows; name a file of rows",
        ),
        (
            ", retain: [other.jsonl, held_out.jsonl]",
            "",
            "has the study's own rows",
        ),
        (", retain: []", "", "key `data.retain`: the list of choices is empty"),
        (
            retain,
            "backend: trl",
            "key `data.retain`: trials in TRL are evaluated on held-out rows alone so far; remove it, or search with the native backend",
        ),
        (
            "",
            "backend: trl\ntrial: {evaluation: {base_kl: true}}",
            "trials in TRL are not compared with the model before the training so far; remove it",
        ),
        (
            "",
            "backend: trl\nobjectives: [loss, base_kl]",
            "trials in TRL do not measure `base_kl` so far",
        ),
    ] {
        let message = study(data, rest).expect_err("the file is wrong").to_string();
        assert!(message.contains(told), "{message}\n{told}");
    }
}
