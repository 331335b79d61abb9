//! Files that grow at their end only, so that who reads them meanwhile need not begin again.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::files::write_new;
use peft_tune_core::whole_file::write_whole;

/// Brings a file to hold `head` and, last of all, `tail`: with what is there as it is, where that is their beginning, or where
/// it has another tail behind the same head. Else, or where there is no file, it is written anew. `whole` says how many bytes
/// at the front of a file are whole records: what was torn is cut off. Returns whether anything was written.
///
/// # Errors
/// What the file system says.
pub fn continue_file(path: &Path, head: &[u8], tail: &[u8], whole: impl Fn(&[u8]) -> usize) -> io::Result<bool> {
    let there = match std::fs::read(path) {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return write_new(path, &[head, tail].concat()).map(|()| true);
        }
        Err(error) => return Err(error),
    };
    let kept = &there[..whole(&there)];
    if let Some(tails) = kept.strip_prefix(head) {
        let missing = match tail.strip_prefix(tails) {
            Some(missing) => missing,
            None if tails.ends_with(tail) => &[],
            None => tail,
        };
        if missing.is_empty() && kept.len() == there.len() {
            return Ok(false);
        }
        return append(path, kept.len(), missing).map(|()| true);
    }
    match head.strip_prefix(kept) {
        Some(rest) => append(path, kept.len(), &[rest, tail].concat()).map(|()| true),
        None => write_whole(path, &[head, tail].concat(), true).map(|()| true),
    }
}

/// Writes at the end of the first `kept` bytes of a file.
fn append(path: &Path, kept: usize, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.set_len(kept as u64)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of one byte each, the last of which is torn where it is a `?`.
    fn whole(bytes: &[u8]) -> usize {
        bytes.len() - usize::from(bytes.ends_with(b"?"))
    }

    #[test]
    fn what_is_there_is_continued_and_only_something_else_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/log");
        for (head, tail, expected, written) in [
            ("ab", "", "ab", true),
            ("abc", "", "abc", true),
            ("abc", "", "abc", false),
            ("abcd", "XY", "abcdXY", true),
            ("abcd", "XY", "abcdXY", false),
            ("abcd", "XZ", "abcdXYXZ", true),
            ("abcd", "XY", "abcdXYXZXY", true),
            ("other", "", "other", true),
        ] {
            assert_eq!(
                continue_file(&path, head.as_bytes(), tail.as_bytes(), whole).unwrap(),
                written
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn what_a_kill_tore_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (there, tail, expected) in [("ab?", "", "abc"), ("abcX?", "XY", "abcXY"), ("abcXY?", "XY", "abcXY")] {
            std::fs::write(&path, there).unwrap();
            assert!(continue_file(&path, b"abc", tail.as_bytes(), whole).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }
}
