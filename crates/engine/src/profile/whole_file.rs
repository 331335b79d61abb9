//! Files that appear under their name only when they are whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::write_whole_with;

/// A file that could not be written; nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {cause}; {}", advice(.cause))]
pub struct WriteError {
    pub path: PathBuf,
    // Not `source`: the message has it, and would be shown with it twice.
    pub cause: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or choose another disk",
        io::ErrorKind::NotFound => "create the folder first, or choose another one",
        _ => "choose a folder that this user may write to",
    }
}

/// Writes a file through `write` beside `path`, and gives it that name once it is whole and on the disk. Where that
/// fails, what had been at `path` is still there and nothing else is.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), WriteError> {
    write_whole_with(path, write).map_err(|cause| WriteError {
        path: path.to_owned(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_failure_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        write_whole(&path, |file| file.write_all(b"first")).unwrap();
        let error = write_whole(&path, |file| {
            file.write_all(b"second, in part")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains("trace.json") && message.contains("free some space"),
            "{message}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_whole(&folder.path().join("none/trace.json"), |_| Ok(())).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("create the folder first, or choose another one"),
            "{error}"
        );
    }
}
