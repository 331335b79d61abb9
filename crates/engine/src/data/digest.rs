//! The hash of a file's content, remembered for large files: as long as nobody touched one, it is not read again.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cache_folder::cache_folder;
use super::progress;
use peft_tune_core::hexadecimal;

/// Bytes from which on a file's hash is remembered.
const LARGE: u64 = 64 << 20;

/// SHA-256 of a file's content. That of a file of 64 MiB and more is kept in this user's cache, with the file's length,
/// inode and times of change.
///
/// # Errors
/// A file that cannot be read.
pub fn content_digest(path: &Path) -> io::Result<[u8; 32]> {
    digest_of(path, cache_folder().as_deref())
}

/// [`content_digest`], remembered in `folder`.
pub(super) fn digest_of(path: &Path, folder: Option<&Path>) -> io::Result<[u8; 32]> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let state = state_of(&metadata).filter(|_| metadata.len() >= LARGE);
    let (Some(folder), Some(state)) = (folder, state) else {
        return read(file);
    };
    let note = note_of(folder, path);
    if let Some(digest) = remembered(&note, &state) {
        return Ok(digest);
    }
    let digest = read(file)?;
    let text = format!("{state} {}\n", hexadecimal(&digest));
    // A file that was changed while it was read has another state now, and one that cannot be remembered is read again.
    let is_same = std::fs::metadata(path).ok().and_then(|now| state_of(&now)) == Some(state);
    if is_same && std::fs::create_dir_all(folder).is_ok() {
        let _ = std::fs::write(&note, text);
    }
    Ok(digest)
}

fn read(mut file: File) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            count => hash.update(&buffer[..count]),
        }
        progress::count();
    }
}

fn remembered(note: &Path, state: &str) -> Option<[u8; 32]> {
    let text = std::fs::read_to_string(note).ok()?;
    let digest = text.strip_prefix(state)?.trim();
    let byte = |at: usize| u8::from_str_radix(digest.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..32).map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok().filter(|_| digest.len() == 64)
}

fn note_of(folder: &Path, path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = Sha256::digest(whole.as_os_str().as_encoded_bytes());
    folder.join(format!("{}.digest", hexadecimal(&name[..16])))
}

/// What changes when somebody writes to a file; `None` where the system does not say.
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
        let (cache, path) = (folder.path().join("cache"), folder.path().join("rows"));
        let mut content = vec![b'x'; LARGE as usize];
        std::fs::write(&path, &content).unwrap();
        let first = digest_of(&path, Some(&cache)).unwrap();
        assert_eq!(first, digest_of(&path, None).unwrap());
        let note = note_of(&cache, &path);
        assert_eq!(
            remembered(&note, &state_of(&path.metadata().unwrap()).unwrap()),
            Some(first)
        );
        // What was noted is believed while the file is the same ...
        let noted = std::fs::read_to_string(&note).unwrap();
        let other = noted.replace(&hexadecimal(&first), &hexadecimal(&[7; 32]));
        std::fs::write(&note, other).unwrap();
        assert_eq!(digest_of(&path, Some(&cache)).unwrap(), [7; 32]);
        // ... and not after a change of the same length, nor where the note is damaged.
        content[5] = b'y';
        std::fs::write(&path, &content).unwrap();
        assert_eq!(digest_of(&path, Some(&cache)).unwrap(), digest_of(&path, None).unwrap());
        std::fs::write(&note, "damaged").unwrap();
        assert_eq!(digest_of(&path, Some(&cache)).unwrap(), digest_of(&path, None).unwrap());
    }
}
