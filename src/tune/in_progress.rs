//! What trials under way are measuring, so that no other begins to measure the same beside them.
//!
//! A trial that needs what another is about to know is deferred, and ones that do not are handed out meanwhile. It starts
//! when that is known, and takes it over; where the other failed or was lost, it measures itself. Only trials that run are
//! waited for and they always end, so nothing waits for ever.

use super::propose::Proposed;
use super::reported::Key;
use super::reuse::{Inherited, Measurement};
use super::tuner::Tuner;
use peft_tune_core::recipe::RecipeKey;
use peft_tune_core::study::{Params, TrialNumber};

/// Something that one trial measures for all that share its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Cost(RecipeKey),
    Loss(RecipeKey),
    /// A metric of a command that is known at the end only.
    Metric(String, Key),
}

impl Claim {
    /// Whether it is about this part of a trial.
    pub(super) fn is_on(&self, part: &Measurement) -> bool {
        match (self, part) {
            (Self::Cost(_), Measurement::Cost) | (Self::Loss(_), Measurement::Loss) => true,
            (Self::Metric(name, _), Measurement::Metric(other)) => name == other,
            _ => false,
        }
    }
}

impl Tuner<'_> {
    /// Puts a proposal off if it has to wait; else returns it.
    pub(super) fn defer(&mut self, proposed: Proposed) -> Option<Proposed> {
        let claims = self.claims_of(&proposed.params);
        if !self.running.measure_any(&claims) {
            return Some(proposed);
        }
        self.queue.defer(proposed, claims);
        None
    }

    /// Whether a trial under way is measuring what these params need.
    pub(super) fn has_to_wait(&self, params: &Params) -> bool {
        self.running.measure_any(&self.claims_of(params))
    }

    /// A trial under way measures what it did not take over.
    pub(super) fn claim(&mut self, number: TrialNumber) {
        let Some(trial) = self.trials.get(number) else { return };
        let claims = self.memory.claims(self.parts.study, &self.problem, &trial.params);
        if let Some(running) = self.running.get_mut(number) {
            running.claim(claims);
        }
    }

    /// The profile phase of a trial under way is over: others may take over what it measured.
    pub(super) fn note_measured(&mut self, number: TrialNumber) {
        let (Some(trial), Some(running)) = (self.trials.get(number), self.running.get_mut(number)) else {
            return;
        };
        if running.has_measured() {
            running.release(&Measurement::Cost);
            self.memory
                .learn_cost(self.parts.study, number, running.kernels(), &trial.params);
        }
    }

    /// Whether a trial took its cost over from one that has not finished. Should that be repeated, it measures again
    /// rather than take over what was taken from it.
    pub(super) fn took_from_open(&self, inherited: &[Inherited]) -> bool {
        let mut costs = inherited.iter().filter(|one| one.part == Measurement::Cost);
        costs.any(|one| self.trials.is_open(one.source))
    }

    fn claims_of(&self, params: &Params) -> Vec<Claim> {
        match self.running.is_empty() {
            true => Vec::new(),
            false => self.memory.claims(self.parts.study, &self.problem, params),
        }
    }
}
