//! The answers together.

use serde::Serialize;

use super::certainty::LossCertainty;
use super::coverage::Coverage;
use super::input::AnswersInput;
use super::more_time::MoreTime;
use super::neighbours::{Neighbour, neighbours};
use super::{certainty, coverage, more_time, worth};
use peft_tune_search::Effect;

/// The answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Answers {
    /// The recommended setting with one thing changed, measured or predicted.
    pub neighbours: Vec<Neighbour>,
    /// Every parameter on every objective, the other settings held.
    pub worth: Vec<Effect>,
    /// How many trainings each value or part of a range got.
    pub coverage: Vec<Coverage>,
    /// Certainty of the recommended trial's loss; `None` where the loss is no objective.
    pub loss: Option<LossCertainty>,
    /// Ten more minutes.
    pub more_time: Option<MoreTime>,
}

impl Answers {
    /// Answers from a study; what its trials cannot answer is left empty.
    pub fn new(input: &AnswersInput<'_>) -> Self {
        Self {
            neighbours: neighbours(input),
            worth: worth::effects(input),
            coverage: coverage::coverage(input),
            loss: certainty::loss_certainty(input),
            more_time: more_time::more_time(input),
        }
    }
}
