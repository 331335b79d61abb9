//! The losses of held-out rows one by one, and who may end an evaluation by them.

use super::step::{Control, Evaluation};

/// Loss of one held-out row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowLoss {
    /// Number of the row in the evaluation, from 0, whatever the micro-batch is.
    pub row: usize,
    pub target_tokens: usize,
    /// Cross-entropy summed over its target tokens, in nats.
    pub loss: f64,
}

/// An evaluation with the losses of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedRows {
    /// Evaluation of the rows that were evaluated, which are all unless a [`RowWatch`] said stop.
    pub evaluation: Evaluation,
    /// Losses in the order of the rows.
    pub rows: Vec<RowLoss>,
}

/// Looks at the rows of an evaluation that is under way. The defaults have all of them evaluated.
pub trait RowWatch {
    /// Rows after which it looks next; `None` where it looks at none.
    fn next_look(&self) -> Option<usize> {
        None
    }

    /// Whether the rows behind these are evaluated too.
    fn look(&mut self, _rows: &[RowLoss]) -> Control {
        Control::Continue
    }
}

/// The watch that looks at nothing.
impl RowWatch for () {}
