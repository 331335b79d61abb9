//! [`WideningProblem`]: the problem of a running search, the one place that holds the space: samplers, relatives, variants
//! and requests are handed it.

use std::ops::Deref;

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
    pub(super) fn is_due(&mut self, finished: u64) -> bool {
        self.looked_at.replace(finished) != Some(finished)
    }

    /// The next range on whose edge the best trials sit.
    pub(super) fn next(&self, history: &[Trial]) -> Option<Widening> {
        next_widening(&self.problem, history)
    }

    /// Widens a range.
    pub(super) fn widen(&mut self, widening: &Widening) {
        self.problem.space.widen(std::slice::from_ref(widening));
    }
}

impl Deref for WideningProblem {
    type Target = Problem;

    fn deref(&self) -> &Problem {
        &self.problem
    }
}
