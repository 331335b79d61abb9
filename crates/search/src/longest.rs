//! Trials whose training was made longer: their loss there goes before that of short trainings.

use super::reason::grouped;
use super::recommend::NEAR_BEST_LOSS;
use super::variants::is_free;
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Metrics, Params, Trial, TrialState};

/// The parameter that only rounds: what it takes away from the loss of a short training is what it takes from a long one's.
const ROUNDS: &str = "precision";

/// The complete trials that were trained longest, with the loss of that, and those whose loss there is known by them.
pub(crate) struct Longest {
    pub(crate) trials: Vec<Trial>,
    /// Tokens that they were trained for.
    tokens: f64,
    /// Different losses among them.
    losses: usize,
}

impl Longest {
    /// `None` where fewer than two trainings can be compared.
    pub(crate) fn of(space: &SearchSpace, history: &[Trial]) -> Option<Self> {
        let known = |metrics: &Metrics| Some((metrics.value(LONGER_TOKENS)?, metrics.value(LOSS_LONGER)?));
        let complete: Vec<(&Trial, &Metrics)> = history
            .iter()
            .filter_map(|trial| match &trial.state {
                TrialState::Complete { metrics } => Some((trial, metrics)),
                _ => None,
            })
            .collect();
        let tokens = complete
            .iter()
            .filter_map(|(_, metrics)| Some(known(metrics)?.0))
            .max_by(f64::total_cmp)?;
        let at_longest = |metrics: &Metrics| known(metrics).filter(|(of_trial, _)| *of_trial == tokens);
        let longest: Vec<(&Trial, &Metrics, f64)> = complete
            .iter()
            .filter_map(|(trial, metrics)| Some((*trial, *metrics, at_longest(metrics)?.1)))
            .collect();
        let mut losses: Vec<u64> = longest.iter().map(|(_, _, loss)| loss.to_bits()).collect();
        losses.sort_unstable();
        losses.dedup();
        let trials = complete.iter().filter_map(|(trial, metrics)| {
            let loss = match at_longest(metrics) {
                Some((_, loss)) => loss,
                None => loss_but_for_rounding(space, (trial, metrics), &longest)?,
            };
            let mut metrics = (*metrics).clone();
            metrics.insert(LOSS, loss);
            Some(Trial {
                state: TrialState::Complete { metrics },
                ..(*trial).clone()
            })
        });
        (losses.len() > 1).then(|| Self {
            trials: trials.collect(),
            tokens,
            losses: losses.len(),
        })
    }

    /// What is to be said of a choice: `among the 2 trainings made longer (240,000 tokens each)`.
    pub(crate) fn said(&self) -> String {
        let tokens = grouped(&self.tokens.to_string());
        format!("among the {} trainings made longer ({tokens} tokens each)", self.losses)
    }

    /// Whether a trial was not trained longer at all, nor one that differs from it in nothing but rounding.
    pub(crate) fn says_nothing_of(&self, trial: &Trial) -> bool {
        let longer = trial.state.metrics().and_then(|metrics| metrics.value(LOSS_LONGER));
        longer.is_none() && !self.trials.iter().any(|one| one.number == trial.number)
    }
}

/// The loss of a trial that differs in nothing but rounding and was trained longest, where both had nearly the same loss after
/// a short training.
fn loss_but_for_rounding(
    space: &SearchSpace,
    (trial, metrics): (&Trial, &Metrics),
    longest: &[(&Trial, &Metrics, f64)],
) -> Option<f64> {
    let loss = metrics.value(LOSS)?;
    let is_near = |other: f64| (loss / other - 1.0).abs() <= NEAR_BEST_LOSS;
    let mut alike = longest.iter().filter(|(other, of_other, _)| {
        of_other.value(LOSS).is_some_and(is_near) && differ_only_in_rounding(space, &trial.params, &other.params)
    });
    alike.next().map(|(_, _, loss)| *loss)
}

/// Whether two settings train the same but for the precision.
fn differ_only_in_rounding(space: &SearchSpace, one: &Params, other: &Params) -> bool {
    let mut counted = space.parameters.iter().filter(|parameter| !is_free(parameter));
    one.get(ROUNDS) != other.get(ROUNDS)
        && counted.all(|parameter| parameter.name == ROUNDS || one.get(&parameter.name) == other.get(&parameter.name))
}
