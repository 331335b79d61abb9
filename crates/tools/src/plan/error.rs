//! Reasons why nothing can be planned.

use std::path::PathBuf;

use peft_tune_core::predict::stack::StackError;
use peft_tune_core::recipe::TrainerKind;

use crate::import::StackFileError;

/// A plan that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{} is no JSON: {reason}", file.display())]
    NoJson { file: PathBuf, reason: serde_json::Error },
    #[error("`trainer: {trainer}` is predicted as TRL trains it, and not in {title}; {instead}")]
    Trainer {
        trainer: TrainerKind,
        /// Tool that it was to be predicted of.
        title: &'static str,
        /// What to do.
        instead: &'static str,
    },
    #[error(transparent)]
    File(#[from] StackFileError),
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error("the plan cannot be written: {0}")]
    Written(serde_json::Error),
}
