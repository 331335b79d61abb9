//! Why a tracker could not take a trial.

use std::path::{Path, PathBuf};

use crate::export::ExportError;
use crate::store::StoreError;

/// What kept a trial from a tracker; the next try may succeed.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{} holds another study of this name: choose another folder", path.display())]
    OtherStudy { path: PathBuf },
    #[error("cannot reach {address}: {source}")]
    Unreachable { address: String, source: Box<ureq::Error> },
    #[error("{address} answers {status}: {message}")]
    Refused {
        address: String,
        status: u16,
        message: String,
    },
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TrackError {
    /// Makes an error for `map_err` of what writes at `path`.
    pub(super) fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }
}
