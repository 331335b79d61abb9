//! The lock that keeps two processes from running one study.
//!
//! It is an operating-system lock on a small file beside the database (`peft-tune.db-lock-1` for the study with id 1),
//! so it ends with its process however that ends, and there is nothing to go stale. That reaches as far as the database
//! itself: SQLite's write-ahead log works on one machine only.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::file_identity::FileIdentity;

/// Lock that is held while a study is run; dropping it lets the study go.
#[derive(Debug)]
pub struct StudyLock {
    file: File,
    path: PathBuf,
}

/// Outcome of an attempt to lock.
#[derive(Debug)]
pub(in crate::store) enum LockAttempt {
    Locked(StudyLock),
    /// Id of the process that has the lock, or `of unknown number` where the file does not say.
    HeldBy(String),
}

impl StudyLock {
    /// Tries to lock the file at `path`, creating it. Never waits.
    pub(in crate::store) fn try_at(path: &Path) -> io::Result<LockAttempt> {
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(LockAttempt::HeldBy(holder(&mut file))),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Whoever held it before may have removed the file between the two calls: a lock on a file without a name
            // keeps nobody out.
            if !is_named(&file, path) {
                continue;
            }
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "{}", std::process::id())?;
            return Ok(LockAttempt::Locked(Self {
                file,
                path: path.to_owned(),
            }));
        }
    }
}

impl Drop for StudyLock {
    fn drop(&mut self) {
        // Removed while it is still locked, so that no one else's file is. A file that stays does no harm.
        if is_named(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether an error says that a file system has no locks at all, as some network file systems do.
pub(in crate::store) fn has_no_locks(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP)
    )
}

/// Whether a process holds the lock at `path`. The look is a short lock of its own, shared with other looks.
pub(in crate::store) fn is_held(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Path of the lock file of a study.
pub(in crate::store) fn lock_path(database: &Path, study: i64) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(format!("-lock-{study}"));
    name.into()
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(20).read_to_string(&mut text);
    match read {
        Ok(_) if text.parse::<u32>().is_ok() => text,
        _ => "of unknown number".to_owned(),
    }
}

/// Whether `path` still names the open file.
fn is_named(file: &File, path: &Path) -> bool {
    let open = FileIdentity::of(file);
    open.is_some() && open == FileIdentity::at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_holder_and_the_first_frees_it_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = lock_path(&folder.path().join("a.db"), 3);
        let LockAttempt::Locked(lock) = StudyLock::try_at(&path).unwrap() else {
            panic!("free")
        };
        let LockAttempt::HeldBy(process) = StudyLock::try_at(&path).unwrap() else {
            panic!("held")
        };
        assert_eq!(process, std::process::id().to_string());
        assert!(is_held(&path));
        drop(lock);
        assert!(!path.exists() && !is_held(&path));
        assert!(matches!(StudyLock::try_at(&path).unwrap(), LockAttempt::Locked(_)));
    }

    #[test]
    fn a_lock_file_left_by_a_killed_process_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db-lock-1");
        std::fs::write(&path, "4711").unwrap();
        assert!(matches!(StudyLock::try_at(&path).unwrap(), LockAttempt::Locked(_)));
    }
}
