//! Files at a database's path, looked at without opening the database.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::store::StoreError;

/// The first bytes of every SQLite file (<https://www.sqlite.org/fileformat2.html#magic_header_string>).
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The kind of file at a database's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// A file without bytes, which SQLite takes as a new database.
    EmptyFile,
    Sqlite,
}

/// Length and time of change of a file: equal stamps mean that it was not written in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    modified: SystemTime,
}

/// The path with every link resolved, so that one database has one path, or made absolute where nothing is there. An
/// absolute path is also never taken for one of SQLite's special names, such as `:memory:`.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, StoreError> {
    std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .map_err(|source| StoreError::Io {
            path: path.to_owned(),
            source,
        })
}

/// Looks at `path`; anything that is there and is no SQLite file is an error.
pub(super) fn look_at(path: &Path) -> Result<Found, StoreError> {
    let path_buf = || path.to_owned();
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(StoreError::NotReadable { path: path_buf() });
        }
        Err(source) => {
            return Err(StoreError::Io {
                path: path_buf(),
                source,
            });
        }
    };
    let io = |source| StoreError::Io {
        path: path_buf(),
        source,
    };
    if !file.metadata().map_err(io)?.is_file() {
        return Err(StoreError::NotADatabase { path: path_buf() });
    }
    let mut start = Vec::with_capacity(MAGIC.len());
    file.by_ref()
        .take(MAGIC.len() as u64)
        .read_to_end(&mut start)
        .map_err(io)?;
    match start.as_slice() {
        [] => Ok(Found::EmptyFile),
        start if start == MAGIC => Ok(Found::Sqlite),
        _ => Err(StoreError::NotADatabase { path: path_buf() }),
    }
}

/// Refuses a file with several names: each would have a log and locks of its own, and two searches could write the file at once
/// (<https://www.sqlite.org/howtocorrupt.html#_multiple_links_to_the_same_file>).
pub(super) fn check_names(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path).map(|metadata| metadata.nlink()) {
        Ok(links) if links > 1 => Err(StoreError::HardLinked {
            path: path.to_owned(),
            links,
        }),
        _ => Ok(()),
    }
}

/// Whether the folder that `path` lies in exists.
pub(super) fn has_folder(path: &Path) -> bool {
    path.parent().is_some_and(Path::is_dir)
}

/// Length of the write-ahead log, or of the rollback journal of a file that is not in write-ahead mode; `None` where
/// there is neither, which means that nobody has the database open for writing and nothing waits to be merged.
pub(super) fn journal_bytes(path: &Path) -> Option<u64> {
    ["-wal", "-journal"]
        .iter()
        .filter_map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            std::fs::metadata(PathBuf::from(name)).ok()
        })
        .map(|metadata| metadata.len())
        .reduce(|a, b| a + b)
}

/// The stamp of a file.
pub(super) fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = std::fs::metadata(path)?;
    Ok(Stamp {
        bytes: metadata.len(),
        modified: metadata.modified()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sqlite_files_are_taken_for_databases() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            look_at(&path)
        };
        assert_eq!(at("new.db", b"").unwrap(), Found::EmptyFile);
        assert_eq!(at("real.db", b"SQLite format 3\0...").unwrap(), Found::Sqlite);
        assert_eq!(look_at(&folder.path().join("none.db")).unwrap(), Found::Nothing);
        assert!(matches!(at("a.txt", b"hello"), Err(StoreError::NotADatabase { .. })));
        assert!(matches!(
            at("long.txt", b"this is not a database"),
            Err(StoreError::NotADatabase { .. })
        ));
        assert!(matches!(
            look_at(folder.path()),
            Err(StoreError::NotADatabase { .. } | StoreError::Io { .. })
        ));
    }
}
