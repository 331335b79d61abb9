//! Files that are read whole, up to a size: what a file says of its own size is not believed, and `/dev/zero` has no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes that settings of a model or an adapter, or the list of its shards, may have at most; settings have a few
/// thousand, and a list of 60,000 tensors has 6 million.
pub const SETTINGS_BYTES: u64 = 16 << 20;

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// The file is larger, or cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("it has more than {} MiB", most >> 20))),
        false => Ok(bytes),
    }
}

/// [`read`], for text.
///
/// # Errors
/// Errors of [`read`], and where the file is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused() {
        assert!(read(Path::new("/dev/zero"), 100).is_err());
        assert_eq!(read(Path::new("/dev/null"), 100).unwrap(), b"");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "abc");
        assert!(read(&path, 2).is_err());
    }
}
