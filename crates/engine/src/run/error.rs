//! Why a training cannot begin, continue or be saved.

use std::path::{Path, PathBuf};

use crate::TrainError;
use crate::data::DataError;
use crate::optimizer::OptimizerError;

/// A training that cannot begin, continue or be saved. A loss that is not finite is not an error but an
/// [`Ending`](super::Ending).
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(
        "the output folder {folder} is not empty; give `--resume` to continue from its latest checkpoint, `--force` to \
         start again in it, or another `--output`"
    )]
    NotEmpty { folder: PathBuf },

    #[error(
        "{folder} holds no training to resume (it has no run.json); leave `--resume` out and give another `--output`"
    )]
    NothingToResume { folder: PathBuf },

    #[error(
        "{folder} was started with another recipe: `{key}` was {before} and is {now}; continue with the recipe.yaml in that \
         folder, or give another `--output` (`adapter.adapter_init` can start from what is there), or `--force` to \
         start again"
    )]
    OtherRecipe {
        folder: PathBuf,
        key: String,
        before: String,
        now: String,
    },

    #[error(
        "{folder} was started with other data: the files of `data` hold other rows, or the model another tokenizer; bring \
         the old ones back, or give another `--output`, or `--force` to start again"
    )]
    OtherData { folder: PathBuf },

    #[error("{path} was written by another version of this program (layout {found}, this one reads {expected})")]
    OtherVersion { path: PathBuf, found: u64, expected: u64 },

    #[error("another training runs in the output folder {folder}; wait for it, or give another `--output`")]
    InUse { folder: PathBuf },

    #[error("the output folder {folder} is the directory of the model that is trained; give another `--output`")]
    OutputIsModel { folder: PathBuf },

    #[error(
        "`--patience` counts evaluations, and this recipe evaluates only at the end; set `training.evaluate_every`"
    )]
    NothingToBePatientWith,

    #[error("cannot read or write {path}: {source}; check its permissions and the space on the disk")]
    File { path: PathBuf, source: std::io::Error },

    #[error("{path} is damaged: {source}; remove its folder")]
    Json { path: PathBuf, source: serde_json::Error },

    #[error("cannot resume from {checkpoint}: {source}")]
    Optimizer {
        checkpoint: PathBuf,
        source: OptimizerError,
    },

    #[error(
        "the ranks of this training read other data than each other; let nothing change the files of `data` while it starts"
    )]
    RanksDiffer,

    #[error(
        "the checkpoint {path} that the training resumes from is gone; keep other programs out of the output folder"
    )]
    CheckpointGone { path: PathBuf },

    #[error(transparent)]
    Data(Box<DataError>),

    #[error(transparent)]
    Train(Box<TrainError>),
}

impl RunError {
    /// Whether another rank of the training is gone, hangs or was lost from sight.
    pub fn lost_a_rank(&self) -> bool {
        matches!(self, Self::Train(error) if matches!(error.as_ref(), TrainError::Collective(_)))
    }

    /// An error of the file system at `path`.
    pub(super) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            source,
        }
    }
}

// Design note: the large errors are boxed, so that a `Result` that is nearly always `Ok` stays small.
impl From<DataError> for RunError {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl<E: Into<TrainError>> From<E> for RunError {
    fn from(error: E) -> Self {
        Self::Train(Box::new(error.into()))
    }
}
