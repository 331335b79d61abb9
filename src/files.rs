//! Files that appear under their name whole or not at all.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

/// Writes a file beside `path` and gives it that name once it is on the disk, in a folder that is there. One that is there already is
/// replaced only with `force`; it is still there, and nothing else, where writing fails. What is no file, such as `/dev/stdout`,
/// is written to as it is.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] without `force`, and what the file system says.
pub fn write_whole(path: &Path, bytes: &[u8], force: bool) -> io::Result<()> {
    if is_no_file(path) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut draft = draft_in(folder)?;
    draft.write_all(bytes)?;
    draft.as_file().sync_all()?;
    let kept = if force {
        draft.persist(path)
    } else {
        draft.persist_noclobber(path)
    };
    kept.map(drop).map_err(|error| error.error)
}

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

/// A file of a name that is free, readable for all as far as the user's mask lets it be. An error does not name it: nobody knows it.
fn draft_in(folder: &Path) -> io::Result<NamedTempFile> {
    let refused = Cell::new(None);
    let open = |path: &Path| {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        file.inspect_err(|error| refused.set(error.raw_os_error()))
    };
    let draft = tempfile::Builder::new().make_in(folder, open);
    draft.map_err(|error| refused.get().map_or(error, io::Error::from_raw_os_error))
}

/// Whether a path names something that a file cannot take the place of: a device, a pipe.
pub fn is_no_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
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
    fn a_file_that_is_there_is_replaced_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.txt");
        let nowhere = write_whole(&folder.path().join("none/file.txt"), b"one", true).unwrap_err();
        assert_eq!(nowhere.to_string(), "No such file or directory (os error 2)");
        write_whole(&path, b"one", false).unwrap();
        let refused = write_whole(&path, b"two", false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        write_whole(&path, b"two", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "no draft is left behind");
    }

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

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        assert!(write_whole(Path::new("/dev/full"), b"one", true).is_err());
        write_whole(Path::new("/dev/null"), b"one", false).unwrap();
        assert!(is_no_file(Path::new("/dev/full")) && is_no_file(Path::new("/dev/null")));
    }
}
