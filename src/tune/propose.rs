//! The next trial: what the sampler proposes, or a relative of a good trial that costs little to know.
//!
//! A setting that differs from a trial of the front only in what cannot change the expensive metrics (activation
//! checkpointing changes no loss) is known after a few steps. Such relatives are weighed against the sampler's proposal by
//! what each is expected to add to the hypervolume for its share of a whole trial's cost.

use super::needed_metrics::needed;
use peft_tune_core::space::Parameter;
use peft_tune_core::study::{Params, Trial};
use peft_tune_search::{CandidateScore, Problem, Sampler, pareto_front, varied};

/// A setting to try, with what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposed {
    pub(super) params: Params,
    pub(super) score: Option<CandidateScore>,
}

impl Proposed {
    /// Values that each objective (minimised) ends below with a probability of 0.05 only; `None` where nothing is
    /// expected.
    pub(super) fn expected_low(&self, problem: &Problem) -> Vec<Option<f64>> {
        let low = |metric: &str| {
            let predicted = &self.score.as_ref()?.predicted;
            predicted.iter().find(|one| one.metric == metric)
        };
        let objectives = problem.objectives.iter();
        objectives
            .map(|objective| {
                let one = low(&objective.metric)?;
                Some(objective.minimised(one.low).min(objective.minimised(one.high)))
            })
            .collect()
    }
}

/// The next setting, of the sampler's own or of `relatives`; `None` where everything is tried. `share` is the share of
/// a whole trial that a setting costs.
pub(super) fn propose(
    sampler: &mut dyn Sampler,
    problem: &Problem,
    history: &[Trial],
    relatives: &[Params],
    share: &dyn Fn(&Params) -> f64,
) -> Option<Proposed> {
    let settings = sampler.choose(problem, history, relatives)?;
    let worth = |(params, score): &(Params, Option<CandidateScore>)| {
        let score = score.as_ref()?;
        Some(score.log_acquisition - share(params).ln())
    };
    // The first of equals: the sampler's own proposal comes first.
    let best = settings
        .into_iter()
        .reduce(|best, one| if worth(&one) > worth(&best) { one } else { best });
    best.map(|(params, score)| Proposed { params, score })
}

/// Untried settings that differ from a trial of the front only in parameters that change nothing expensive.
pub(super) fn relatives(problem: &Problem, history: &[Trial]) -> Vec<Params> {
    let cheap = |parameter: &Parameter| is_cheap(problem, parameter);
    let mut found: Vec<Params> = Vec::new();
    if !problem.space.parameters.iter().any(cheap) {
        return found;
    }
    for one in pareto_front(problem, history) {
        for params in varied(&problem.space, &one.trial.params, &cheap) {
            let tried = history.iter().any(|trial| trial.params == params);
            if !tried && !found.contains(&params) {
                found.push(params);
            }
        }
    }
    found
}

/// Whether a parameter changes only metrics that are known early.
fn is_cheap(problem: &Problem, parameter: &Parameter) -> bool {
    let expensive = |metric: &&str| {
        let objective = problem.objectives.iter().find(|objective| objective.metric == **metric);
        objective.is_none_or(|objective| objective.known_after.is_none())
    };
    let metrics = needed(problem);
    let mut late = metrics.iter().filter(|metric| expensive(metric));
    parameter.affects.is_some() && late.all(|metric| !parameter.can_change(metric))
}
