//! Ranges that widen by themselves: where the best trials sit on an edge, the sampler proposes beyond it from then on.
//!
//! The problem of a running search is the one place that holds the space: samplers, relatives, variants and requests are handed it.
//! What was widened is stored before the first trial makes use of it, so that a resumed search goes on with it.

use std::ops::Deref;

use super::{TuneError, Tuner};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::space::Widening;
use peft_tune_core::study::Trial;
use peft_tune_search::{Problem, next_widening};

/// The problem that is searched, with the ranges as wide as they are by now; it reads as the problem.
#[derive(Debug)]
pub(super) struct WideningProblem {
    problem: Problem,
    /// Number of finished trials when it was last asked whether a range is to be widened.
    looked_at: Option<u64>,
}

impl WideningProblem {
    /// The problem of a study whose file says this, with the ranges that earlier searches widened.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(super) async fn stored(mut problem: Problem, store: &Store, id: StudyId) -> Result<Self, StoreError> {
        problem.space.widen(&store.widenings().of(id).await?);
        Ok(Self {
            problem,
            looked_at: None,
        })
    }

    /// Whether the edges have not been looked at behind so many finished trials; they then count as looked at.
    fn is_due(&mut self, finished: u64) -> bool {
        self.looked_at.replace(finished) != Some(finished)
    }

    /// The next range on whose edge the best trials sit.
    fn next(&self, history: &[Trial]) -> Option<Widening> {
        next_widening(&self.problem, history)
    }

    fn widen(&mut self, widening: &Widening) {
        self.problem.space.widen(std::slice::from_ref(widening));
    }
}

impl Deref for WideningProblem {
    type Target = Problem;

    fn deref(&self) -> &Problem {
        &self.problem
    }
}

impl Tuner<'_> {
    /// Widens the ranges on whose edges the best trials sit. Looks again once another trial has ended.
    pub(super) async fn widen_ranges(&mut self) -> Result<(), TuneError> {
        let finished = self.trials.finished_trials().finished();
        if !self.parts.sampler.follows_best() || !self.problem.is_due(finished) {
            return Ok(());
        }
        while let Some(widening) = self.problem.next(self.trials.all()) {
            self.parts.store.widenings().record(self.parts.id, &widening).await?;
            tracing::info!(
                parameter = widening.parameter,
                low = widening.to.low,
                high = widening.to.high,
                "a range is widened"
            );
            self.problem.widen(&widening);
            self.parts.observer.range_widened(&widening);
        }
        Ok(())
    }
}
