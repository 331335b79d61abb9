//! Why a study cannot go on.

use crate::store::StoreError;
use crate::worker::EvaluatorError;

/// The study loop cannot go on. A trial that fails is a result, not an error.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Evaluator(#[from] EvaluatorError),
}
