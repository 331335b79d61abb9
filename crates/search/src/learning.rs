//! How much a trial must learn: fast settings that hardly learn are ends of a front, and nobody trains for them.

use super::Problem;
use super::history::{Evaluated, violation};
use peft_tune_core::objective::{LOSS, LOSS_BEFORE};

/// The held-out loss of a trial that learns `share` of what the best trial within the problem's constraints learns: the
/// loss before the training, less that share of what it falls by. `None` where the loss is not an objective, or no
/// trial lowers it or knows where it began.
pub(super) fn loss_after_learning(problem: &Problem, complete: &[Evaluated<'_>], share: f64) -> Option<f64> {
    let index = problem.objectives.iter().position(|one| one.metric == LOSS)?;
    let kept = |one: &&Evaluated<'_>| {
        let metrics = one.trial.state.metrics();
        metrics.is_some_and(|metrics| violation(&problem.constraints, metrics) == 0.0)
    };
    let best = complete
        .iter()
        .filter(kept)
        .min_by(|a, b| a.values[index].total_cmp(&b.values[index]))?;
    let (loss, before) = (best.values[index], best.trial.state.metrics()?.value(LOSS_BEFORE)?);
    (loss < before).then_some(before - share * (before - loss))
}
