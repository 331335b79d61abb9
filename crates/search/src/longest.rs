//! Trials whose training was made longer: their loss there goes before that of short trainings.

use super::reason::grouped;
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER};
use peft_tune_core::study::{Metrics, Trial, TrialState};

/// The complete trials that were trained longest, with the loss of that.
pub(crate) struct Longest {
    pub(crate) trials: Vec<Trial>,
    /// Tokens that they were trained for.
    tokens: f64,
    /// Different losses among them.
    losses: usize,
}

impl Longest {
    /// `None` where fewer than two trainings can be compared.
    pub(crate) fn of(history: &[Trial]) -> Option<Self> {
        let known = |metrics: &Metrics| Some((metrics.value(LONGER_TOKENS)?, metrics.value(LOSS_LONGER)?));
        let complete = || {
            history.iter().filter_map(|trial| match &trial.state {
                TrialState::Complete { metrics } => Some((trial, metrics, known(metrics)?)),
                _ => None,
            })
        };
        let tokens = complete().map(|(_, _, (tokens, _))| tokens).max_by(f64::total_cmp)?;
        let longest = || complete().filter(|(_, _, (of_trial, _))| *of_trial == tokens);
        let mut losses: Vec<u64> = longest().map(|(_, _, (_, loss))| loss.to_bits()).collect();
        losses.sort_unstable();
        losses.dedup();
        let trials = longest().map(|(trial, metrics, (_, loss))| {
            let mut metrics = metrics.clone();
            metrics.insert(LOSS, loss);
            Trial {
                state: TrialState::Complete { metrics },
                ..trial.clone()
            }
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
}
