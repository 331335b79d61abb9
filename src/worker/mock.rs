//! The evaluator's stand-in: answers from a function, without running anything.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Evaluator, EvaluatorError, TrialEvent, TrialRequest};
use peft_tune_core::study::{Phase, TrialNumber, TrialState};

/// An evaluator that answers each trial with what a function says of its request.
pub struct MockEvaluator<F> {
    capacity: usize,
    outcome: F,
    events: VecDeque<TrialEvent>,
    /// Trials that were asked to stop.
    pub cancelled: Vec<TrialNumber>,
}

impl<F: FnMut(&TrialRequest) -> TrialState> MockEvaluator<F> {
    /// An evaluator with `capacity` slots.
    pub fn new(capacity: usize, outcome: F) -> Self {
        Self {
            capacity,
            outcome,
            events: VecDeque::new(),
            cancelled: Vec::new(),
        }
    }
}

impl<F: FnMut(&TrialRequest) -> TrialState> Evaluator for MockEvaluator<F> {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let number = request.number;
        let state = (self.outcome)(&request);
        self.events.push_back(TrialEvent::Phase {
            number,
            phase: Phase::Profile,
        });
        self.events.push_back(TrialEvent::Ended {
            number,
            state,
            wall_s: 0.0,
        });
        Ok(())
    }

    fn next_event(&mut self, _timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        Ok(self.events.pop_front())
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        self.cancelled.push(number);
        Ok(())
    }
}
