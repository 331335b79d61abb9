//! Reasons why a study cannot continue.

use std::path::PathBuf;

use crate::store::StoreError;
use crate::worker::EvaluatorError;
use peft_tune_core::study::FailReason;

/// An error after which the study loop cannot continue. A trial that fails is a result, not an error.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Evaluator(#[from] EvaluatorError),
    #[error(
        "{path} was changed or removed while the study ran: put it back and start the search again, or give the study a \
         new name; the trials under way were handed back"
    )]
    InputChanged { path: PathBuf },
    #[error(
        "no trial was run: one step of every setting tried before the first fails alike, so no setting is to blame: {message}\n\
         mend that and start the search again"
    )]
    Rehearsal { message: String },
    #[error(
        "the last {trials} trials failed alike, so the settings are hardly to blame: {message}\nmend that and start the \
         search again, which runs them once more; if it is the settings' fault after all, add `--keep-going`"
    )]
    FailAlike { trials: usize, message: String },
    #[error(
        "{trials} trials in a row lost every attempt, so the settings are hardly to blame (the last: {}): \
         fix the cause and start the search again",
        reason.message()
    )]
    WorkersLost { trials: u64, reason: FailReason },
}
