//! What a receipt is made of: the steps of both trainings, and the rows that they were made on.

use serde::Serialize;

use super::row_match::{Match, matches};
use super::tool_run::{ToolStep, ToolTraining};
use crate::cli::engines::{Bound, Trained};
use crate::cli::export::token_row::TokenRow;
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::data::PreparedData;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// A number of the engine's and that of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Both<T> {
    pub engine: Option<T>,
    pub tool: Option<T>,
}

/// Rows of one step, and its numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ReceiptStep {
    pub step: u64,
    pub rows: usize,
    /// Rows that the engine has too, token by token and label by label.
    pub same_rows: usize,
    /// Tokens that the tool trained on, and how many of them are no targets.
    pub tokens: usize,
    pub masked: usize,
    pub learning_rate: Both<f64>,
    /// Losses and norms of gradients; the engine's are absent where its step would be one of other rows.
    pub loss: Both<f64>,
    pub grad_norm: Both<f64>,
}

/// The rows of one step of the tool's, each with what it is to the engine.
#[derive(Clone, Debug)]
pub(super) struct StepRows {
    pub rows: Vec<TokenRow>,
    pub matches: Vec<Match>,
}

impl StepRows {
    /// The rows of each step, looked for in the engine's data.
    pub(super) fn of(training: &ToolTraining, data: &PreparedData) -> Vec<Self> {
        let steps: Vec<Vec<TokenRow>> = training.steps.iter().map(ToolStep::rows).collect();
        let mut all = matches(data, &steps.concat()).into_iter();
        let with_matches = |rows: Vec<TokenRow>| Self {
            matches: all.by_ref().take(rows.len()).collect(),
            rows,
        };
        steps.into_iter().map(with_matches).collect()
    }

    fn same(&self) -> usize {
        self.matches.iter().filter(|one| **one == Match::Same).count()
    }
}

/// First steps that the engine can make of the same rows: as many of them a step as in the first one, all of which can be learnt from.
pub(super) fn comparable(steps: &[StepRows]) -> usize {
    let of_step = steps.first().map_or(0, |step| step.rows.len());
    let is_like_first = |step: &&StepRows| step.rows.len() == of_step && step.rows.iter().all(TokenRow::is_learnt);
    match of_step {
        0 => 0,
        _ => steps.iter().take_while(is_like_first).count(),
    }
}

/// What a receipt is taken of.
pub(super) struct Evidence<'a> {
    pub recipe: &'a Recipe,
    pub tool: &'static str,
    pub device: &'a str,
    /// The tool's steps and its rows in them.
    pub training: &'a ToolTraining,
    pub rows: &'a [StepRows],
    /// The engine's steps; absent where it could make none.
    pub engine: Option<Trained>,
    pub parameters: Option<u64>,
    pub bound: Bound,
    pub changed: Vec<String>,
    pub total_steps: u64,
    pub is_chat: bool,
}

/// The steps of both, side by side.
pub(super) fn steps(evidence: &Evidence<'_>, compared: usize) -> Vec<ReceiptStep> {
    let both = evidence.training.steps.iter().zip(evidence.rows).enumerate();
    let of_step = |(number, (theirs, rows)): (usize, (&ToolStep, &StepRows))| {
        let ours = evidence.engine.as_ref().and_then(|trained| trained.steps.get(number));
        let trained = ours.filter(|_| number < compared);
        let labels = rows.rows.iter().flat_map(|row| &row.labels);
        ReceiptStep {
            step: number as u64 + 1,
            rows: rows.rows.len(),
            same_rows: rows.same(),
            tokens: rows.rows.iter().map(|row| row.ids.len()).sum(),
            masked: labels.filter(|label| **label == IGNORE).count(),
            learning_rate: Both {
                engine: ours.map(|step| step.learning_rate),
                tool: theirs.learning_rate,
            },
            loss: Both {
                engine: trained.map(|step| step.loss),
                tool: theirs.loss,
            },
            grad_norm: Both {
                engine: trained.map(|step| step.grad_norm),
                tool: theirs.grad_norm,
            },
        }
    };
    both.map(of_step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(targets: &[usize]) -> StepRows {
        let row = |count: &usize| TokenRow {
            ids: vec![7; 4],
            labels: (0..4).map(|at| if at < 4 - count { IGNORE } else { 7 }).collect(),
        };
        StepRows {
            rows: targets.iter().map(row).collect(),
            matches: vec![Match::Same; targets.len()],
        }
    }

    #[test]
    fn steps_are_compared_as_long_as_the_engine_can_make_them() {
        let whole = || step(&[2, 3]);
        assert_eq!(comparable(&[whole(), whole(), whole()]), 3);
        // The end of an epoch, and packed rows of another number of documents.
        assert_eq!(comparable(&[whole(), step(&[2]), whole()]), 1);
        assert_eq!(comparable(&[whole(), step(&[2, 0])]), 1);
        assert_eq!((comparable(&[step(&[0, 1])]), comparable(&[])), (0, 0));
    }
}
