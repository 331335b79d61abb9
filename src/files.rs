//! Files that other programs read while they grow, and names for them.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use peft_tune_core::whole_file::write_whole;

/// Brings a file to hold these bytes, in a folder that is made where it is missing: what is there and their beginning is written
/// on, what is there and something else is replaced whole. A reader never finds less than before of what stays. Nothing waits for the
/// disk but a replacement: who calls this again mends what a power failure tore.
///
/// # Errors
/// What the file system says.
pub fn continue_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = match std::fs::read(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return write_new(path, bytes),
        Err(error) => return Err(error),
    };
    match bytes.strip_prefix(there.as_slice()) {
        Some([]) => Ok(()),
        Some(rest) => OpenOptions::new().append(true).open(path)?.write_all(rest),
        None => write_whole(path, bytes, true),
    }
}

/// Writes a file that is not there yet, in a folder that is made where it is missing.
///
/// # Errors
/// What the file system says.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match std::fs::write(path, bytes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(path, bytes)
        }
        written => written,
    }
}

/// A name from elsewhere as that of a file: nothing in it leads elsewhere or means something to a shell.
pub fn plain_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(plain).take(100).collect();
    match name.starts_with('.') || name.is_empty() {
        true => format!("_{name}"),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_continued_where_it_can_be_and_replaced_where_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/file");
        for text in ["", "ab", "abcd", "abcd", "other", "o"] {
            continue_whole(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(continue_whole(&path.join("below"), b"x").is_err());
    }

    #[test]
    fn a_name_from_elsewhere_stays_in_its_folder() {
        for (name, expected) in [("my-study", "my-study"), ("..", "_.."), ("a/b c", "a_b_c"), ("", "_")] {
            assert_eq!(plain_name(name), expected);
        }
    }
}
