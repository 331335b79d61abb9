//! Trial processes: who runs a trial, and how the coordinator talks to it.

mod evaluator;

pub use evaluator::{Evaluator, EvaluatorError, TrialEvent, TrialRequest};
