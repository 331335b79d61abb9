//! A file that could not be written, and what to do then.

use std::io;
use std::path::PathBuf;

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

#[cfg(test)]
mod tests {
    use super::super::Trace;
    use super::*;

    #[test]
    fn the_message_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = Trace::default()
            .write(&folder.path().join("none/trace.json"))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("create the folder first, or choose another one"),
            "{error}"
        );
        let full = WriteError {
            cause: io::ErrorKind::StorageFull.into(),
            ..error
        };
        let message = full.to_string();
        assert!(
            message.contains("trace.json") && message.contains("free some space"),
            "{message}"
        );
    }
}
