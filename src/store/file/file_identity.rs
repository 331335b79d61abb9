//! [`FileIdentity`]: which file lies at a path.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identity of a file, which tells it from another at the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Identity of the file at `path`; `None` where there is none.
    pub(super) fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(Self::from)
    }

    /// Identity of an open file; `None` where its system does not say.
    pub(super) fn of(file: &File) -> Option<Self> {
        file.metadata().ok().map(Self::from)
    }
}

impl From<Metadata> for FileIdentity {
    fn from(metadata: Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}
