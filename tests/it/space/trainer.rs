//! Trainers of preferences in a study file: what they make of rows, metrics and other keys.

use peft_tune::space::SpaceError;
use peft_tune_core::recipe::{DataFormat, ReferencePass, TrainerKind};

use super::files::{message, read, study};

/// The message about a study with this `space` section and these further lines.
fn told(space: &str, rest: &str) -> String {
    message(study(space, rest))
}

fn metrics(space: &str, rest: &str) -> Result<Vec<String>, SpaceError> {
    let study = study(space, rest)?;
    Ok(study.objectives.into_iter().map(|one| one.metric).collect())
}

#[test]
fn a_trainer_is_one_for_all_trials_and_settles_their_rows() {
    let base = |space: &str| study(space, "backend: trl").unwrap().base.unwrap();
    let pairs = base("  trainer: dpo\n  beta: 0.3\n  reference: precomputed\n  rank: [4, 8]");
    assert_eq!((pairs.trainer, pairs.beta), (TrainerKind::Dpo, Some(0.3)));
    assert_eq!(pairs.reference, ReferencePass::Precomputed);
    assert_eq!(pairs.data.format, DataFormat::Preference);
    assert_eq!(
        base("  trainer: orpo\n  rank: [4, 8]").data.format,
        DataFormat::Preference
    );
    assert_eq!(
        base("  trainer: kto\n  rank: [4, 8]").data.format,
        DataFormat::UnpairedPreference
    );
    for space in ["  trainer: sft\n  rank: [4, 8]", "  rank: [4, 8]"] {
        let plain = base(space);
        assert_eq!((plain.trainer, plain.data.format), (TrainerKind::Sft, DataFormat::Auto));
    }
    let searched = told("  trainer: [dpo, orpo]", "backend: trl");
    assert!(
        searched.contains("key `space.trainer`") && searched.contains("one trainer for all"),
        "{searched}"
    );
    let baseline = told(
        "  trainer: dpo\n  rank: [4, 8]",
        "backend: trl\nbaseline: {trainer: orpo}",
    );
    assert!(baseline.contains("key `baseline.trainer`"), "{baseline}");
}

#[test]
fn trainers_that_no_trial_runs_are_refused_with_the_reason() {
    let grpo = told("  trainer: grpo\n  rank: [4, 8]", "backend: trl");
    assert!(
        grpo.contains("`grpo` writes answers while it trains") && grpo.contains("dpo"),
        "{grpo}"
    );
    let reward = told("  trainer: reward\n  rank: [4, 8]", "backend: trl");
    assert!(
        reward.contains("`reward` trains a model that scores answers"),
        "{reward}"
    );
}

#[test]
fn keys_that_a_trainer_does_not_read_are_refused() {
    let none = told("  beta: [0.1, 0.5]", "backend: trl");
    assert!(
        none.contains("key `space.beta`") && none.contains("dpo, kto, orpo"),
        "{none}"
    );
    let orpo = told(
        "  trainer: orpo\n  reference: precomputed\n  rank: [4, 8]",
        "backend: trl",
    );
    assert!(
        orpo.contains("key `space.reference`") && orpo.contains("dpo, kto"),
        "{orpo}"
    );
    let data = "model: ./base\nbackend: trl\nspace: {trainer: dpo, rank: [4, 8]}\ndata: {train: train.jsonl, ";
    let format = message(read(&format!("{data}format: alpaca}}\n")));
    assert!(
        format.contains("`data.format`") && format.contains("preference"),
        "{format}"
    );
    let learnt = message(read(&format!("{data}loss_on: all}}\n")));
    assert!(learnt.contains("`data.loss_on`"), "{learnt}");
}

#[test]
fn metrics_are_those_of_the_trainer_and_compare_over_the_space() {
    let fixed = "  trainer: dpo\n  rank: [4, 8]";
    assert_eq!(
        metrics(fixed, "backend: trl").unwrap(),
        ["throughput", "peak_memory", "loss"]
    );
    let searched = "  trainer: dpo\n  beta: {low: 0.05, high: 0.5, scale: log}";
    let usual = metrics(searched, "backend: trl").unwrap();
    assert_eq!(usual, ["throughput", "peak_memory", "reward_accuracy"]);
    for metric in ["loss", "reward_margin"] {
        let lines = format!("backend: trl\nobjectives: [throughput, {metric}]");
        let refused = told(searched, &lines);
        assert!(
            refused.contains("key `objectives") && refused.contains("`reward_accuracy`"),
            "{refused}"
        );
        assert_eq!(metrics(fixed, &lines).unwrap(), ["throughput", metric]);
        let sign = if metric == "loss" { "<=" } else { ">=" };
        let bound = format!("backend: trl\nobjectives: [throughput]\nconstraints: {{{metric}: '{sign} 0.6'}}");
        let refused = told(searched, &bound);
        assert!(refused.contains(&format!("key `constraints.{metric}`")), "{refused}");
    }
    let share = "backend: trl\nobjectives: [throughput]\nconstraints: {reward_accuracy: '>= 70%'}";
    assert_eq!(study(searched, share).unwrap().constraints[0].metric, "reward_accuracy");
    let tokens = told(fixed, "backend: trl\nobjectives: [throughput, token_accuracy]");
    assert!(tokens.contains("measures no `token_accuracy`"), "{tokens}");
    let plain = told(
        "  rank: [4, 8]",
        "backend: trl\nobjectives: [throughput, reward_accuracy]",
    );
    assert!(plain.contains("`trainer: dpo`"), "{plain}");
}
