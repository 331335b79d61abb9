//! Rules on what happens beside the steps.

use super::evidence::percent;
use super::{Change, Evidence, Finding, Gain, Rule};

/// Part of the training that may pass evaluating.
const MOST_EVALUATING: f64 = 0.1;

pub(super) fn evaluates_too_often(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let evaluation = profile.evaluation?;
    let every = evidence.recipe.training.evaluate_every?;
    let count = profile.data.training_evaluations;
    if evaluation.share <= MOST_EVALUATING || count < 2 {
        return None;
    }
    // As rarely as it takes to come down to half of what is allowed, but still twice.
    let factor = (evaluation.share / (1.0 - evaluation.share)) / (MOST_EVALUATING / 2.0);
    let rarer = (every as f64 * factor).ceil() as u64;
    let rarer = rarer.min(profile.data.training_steps.div_ceil(2)).max(every);
    if rarer == every {
        return None;
    }
    let left = profile.data.training_steps.div_ceil(rarer.max(1)) as f64 / count as f64;
    Some(Finding {
        rule: Rule::EvaluatesTooOften,
        evidence: format!(
            "{count} evaluations of {:.1} s take {} of the training's time",
            evaluation.seconds,
            percent(evaluation.share)
        ),
        change: Change::EvaluateEvery(rarer),
        gain: Some(Gain::without(evaluation.share * (1.0 - left).max(0.0))),
        verified: None,
    })
}
