//! The hash of a file's content, remembered for large files: as long as nobody touched one, it is not read again.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cache_folder::cache_folder;
use super::progress;
use super::readers::count_lines;
use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::write_whole;

/// Bytes from which on a file's hash is remembered.
const LARGE: u64 = 64 << 20;

/// SHA-256 of a file's content. That of a file of 64 MiB and more is kept in this user's cache, with the file's length,
/// inode and times of change, and with the rows of a file of lines, which are counted in the same reading.
///
/// # Errors
/// A file that cannot be read.
pub fn content_digest(path: &Path) -> io::Result<[u8; 32]> {
    Ok(digest_of(path, cache_folder().as_deref())?.hash)
}

/// Digest and rows that one reading of a file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentDigest {
    pub hash: [u8; 32],
    /// Rows of a file of lines, counted while it is hashed; `None` for others.
    pub rows: Option<usize>,
}

/// [`content_digest`] and the rows, remembered in `folder`.
pub(super) fn digest_of(path: &Path, folder: Option<&Path>) -> io::Result<ContentDigest> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let state = state_of(&metadata).filter(|_| metadata.len() >= LARGE);
    let (Some(folder), Some(state)) = (folder, state) else {
        return read(path, file);
    };
    let note = note_of(folder, path);
    if let Some(digest) = remembered(&note, &state) {
        progress::pass(metadata.len());
        return Ok(digest);
    }
    let digest = read(path, file)?;
    let rows = digest.rows.map_or_else(String::new, |rows| format!(" {rows}"));
    let text = format!("{state} {}{rows}\n", hexadecimal(&digest.hash));
    // A file that was changed while it was read has another state now, and one that cannot be remembered is read again.
    let is_same = std::fs::metadata(path).ok().and_then(|now| state_of(&now)) == Some(state);
    if is_same && std::fs::create_dir_all(folder).is_ok() {
        let _ = write_whole(&note, text.as_bytes(), true);
    }
    Ok(digest)
}

fn read(path: &Path, file: File) -> io::Result<ContentDigest> {
    let mut file = HashedFile {
        file,
        hash: Sha256::new(),
    };
    let rows = count_lines(path, &mut file);
    // What the lines did not end with, or all of it.
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(ContentDigest {
        hash: file.hash.finalize().into(),
        rows,
    })
}

/// A file that is hashed as it is read.
struct HashedFile {
    file: File,
    hash: Sha256,
}

impl Read for HashedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hash.update(&buffer[..count]);
        progress::pass(count as u64);
        progress::count();
        Ok(count)
    }
}

/// Digest that a note has of a file in this state. One that was not written to its end says nothing.
fn remembered(note: &Path, state: &str) -> Option<ContentDigest> {
    let text = std::fs::read_to_string(note).ok()?;
    let mut words = text.strip_suffix('\n')?.strip_prefix(state)?.split_whitespace();
    let digest = words.next().filter(|digest| digest.len() == 64)?;
    let byte = |at: usize| u8::from_str_radix(digest.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..32).map(byte).collect::<Option<_>>()?;
    Some(ContentDigest {
        hash: bytes.try_into().ok()?,
        rows: words.next().and_then(|rows| rows.parse().ok()),
    })
}

fn note_of(folder: &Path, path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = Sha256::digest(whole.as_os_str().as_encoded_bytes());
    folder.join(format!("{}.digest", hexadecimal(&name[..16])))
}

/// State of a file, which changes when somebody writes to it; `None` where the system does not say.
#[cfg(unix)]
fn state_of(metadata: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (length, inode) = (metadata.len(), metadata.ino());
    let (written, changed) = (metadata.mtime(), metadata.ctime());
    let (written_ns, changed_ns) = (metadata.mtime_nsec(), metadata.ctime_nsec());
    Some(format!(
        "{length} {inode} {written}.{written_ns} {changed}.{changed_ns}"
    ))
}

#[cfg(not(unix))]
fn state_of(_: &Metadata) -> Option<String> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_read_again_only_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, path) = (folder.path().join("cache"), folder.path().join("rows.jsonl"));
        let mut content = b"{\"text\": \"a tired baker\"}\n\n".repeat((LARGE / 26) as usize + 1);
        std::fs::write(&path, &content).unwrap();
        let first = digest_of(&path, Some(&cache)).unwrap();
        assert_eq!(first.hash, <[u8; 32]>::from(Sha256::digest(&content)));
        assert_eq!(first.rows, Some(LARGE as usize / 26 + 1));
        assert_eq!(first, digest_of(&path, None).unwrap());
        let note = note_of(&cache, &path);
        assert_eq!(
            remembered(&note, &state_of(&path.metadata().unwrap()).unwrap()),
            Some(first)
        );
        // What was noted is believed while the file is the same ...
        let noted = std::fs::read_to_string(&note).unwrap();
        let other = noted.replace(&hexadecimal(&first.hash), &hexadecimal(&[7; 32]));
        std::fs::write(&note, other).unwrap();
        let believed = digest_of(&path, Some(&cache)).unwrap();
        assert_eq!((believed.hash, believed.rows), ([7; 32], first.rows));
        // One of an earlier version says nothing of rows, and half a note says nothing.
        std::fs::write(&note, noted.rsplit_once(' ').unwrap().0.to_owned() + "\n").unwrap();
        assert_eq!(
            digest_of(&path, Some(&cache)).unwrap(),
            ContentDigest { rows: None, ..first }
        );
        std::fs::write(&note, &noted[..noted.len() - 2]).unwrap();
        assert_eq!(digest_of(&path, Some(&cache)).unwrap(), first);
        // ... and not after a change of the same length, nor where the note is damaged.
        content[12] = b'y';
        std::fs::write(&path, &content).unwrap();
        assert_eq!(digest_of(&path, Some(&cache)).unwrap(), digest_of(&path, None).unwrap());
        std::fs::write(&note, "damaged").unwrap();
        assert_eq!(digest_of(&path, Some(&cache)).unwrap(), digest_of(&path, None).unwrap());
    }
}
