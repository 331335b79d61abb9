//! Ranges that widen by themselves: where the best trials sit on an edge, the sampler proposes beyond it from then on.
//!
//! The problem of a running search is the one place that holds the space: samplers, relatives, variants and requests are handed it.
//! What was widened is stored before the first trial makes use of it, so that a resumed search goes on with it.

use super::{TuneError, Tuner};
use crate::store::{Store, StudyId};
use peft_tune_core::space::Widening;
use peft_tune_search::{Problem, next_widening};

/// The problem of a study whose file says this, with the ranges that earlier searches widened.
pub(super) async fn widened(mut problem: Problem, store: &Store, id: StudyId) -> Result<Problem, TuneError> {
    problem.space.widen(&store.widenings(id).await?);
    Ok(problem)
}

impl Tuner<'_> {
    /// What is searched, with the ranges as wide as they are by now.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Widens the ranges on whose edges the best trials sit. Looks again once another trial has ended.
    pub(super) async fn widen_ranges(&mut self) -> Result<(), TuneError> {
        let finished = self.trials.standing().finished();
        if !self.parts.sampler.follows_best() || self.looked_at_edges == Some(finished) {
            return Ok(());
        }
        self.looked_at_edges = Some(finished);
        while let Some(widening) = next_widening(&self.problem, self.trials.all()) {
            self.parts.store.record_widening(self.parts.id, &widening).await?;
            self.search_wider(&widening);
        }
        Ok(())
    }

    fn search_wider(&mut self, widening: &Widening) {
        tracing::info!(
            parameter = widening.parameter,
            low = widening.to.low,
            high = widening.to.high,
            "a range is widened"
        );
        self.problem.space.widen(std::slice::from_ref(widening));
        self.parts.observer.range_widened(widening);
    }
}
