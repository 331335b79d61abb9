//! Rules on what happens beside the steps.

use super::evidence::percent;
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::span::StepPhase;

/// Part of the training that may pass evaluating.
const MOST_EVALUATING: f64 = 0.1;
/// Part of the step that may pass writing it down.
const MOST_LOGGING: f64 = 0.02;

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

pub(super) fn logs_too_often(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let (logging, every) = (profile.phase_share(StepPhase::Logging), profile.setting.log_every);
    if logging <= MOST_LOGGING || every == 0 {
        return None;
    }
    // As rarely as it takes to come down to half of what is allowed.
    let times = (logging / (1.0 - logging) / (MOST_LOGGING / 2.0)).ceil();
    let seconds = logging * profile.steps.step_s;
    Some(Finding {
        rule: Rule::LogsTooOften,
        evidence: format!(
            "{} of a step's time goes into logging it ({:.2} ms of {:.2} ms{})",
            percent(logging),
            1e3 * seconds,
            1e3 * profile.steps.step_s,
            if every > 1 {
                format!(", though one in {every} is written")
            } else {
                String::new()
            }
        ),
        change: Change::LogEvery(every * times as u64),
        gain: Some(Gain::without(logging * (1.0 - 1.0 / times))),
        verified: None,
    })
}
