//! Disk space for the tokens of all rows, by those of the first rows: who waits for hours shall not learn at their end that
//! the disk is full.

use std::path::Path;

use super::token_writer::TokenWriter;
use super::{DataError, progress};
use crate::data::progress::TokenSpace;

/// Share of an estimate that the tokens take in any case: rows differ.
const SURE: f64 = 0.9;
/// Share of the data between two looks, at most.
const BETWEEN: f64 = 1.0 / 64.0;

/// Looks at the space in a folder from time to time.
#[derive(Debug)]
pub(super) struct DiskSpace<'a> {
    folder: &'a Path,
    next: f64,
}

impl<'a> DiskSpace<'a> {
    pub(super) fn new(folder: &'a Path) -> Self {
        Self { folder, next: 0.0 }
    }

    /// Looks at what was written of the given share of the data.
    ///
    /// # Errors
    /// The tokens of all rows surely take more than there is.
    pub(super) fn look(&mut self, writer: &TokenWriter, share: f64) -> Result<(), DataError> {
        if share < self.next || share <= 0.0 {
            return Ok(());
        }
        self.next = (2.0 * share).min(share + BETWEEN);
        let written = writer.file_bytes();
        let Some(free) = Free::of(self.folder) else {
            return Ok(());
        };
        let [all, at_once] = [written.all, written.at_once].map(|bytes| bytes as f64 / share.min(1.0));
        // What was written is not free any more.
        let free_bytes = free.disk.saturating_add(written.all);
        let (needed_bytes, free_bytes) = match all > free.file as f64 {
            true => (all as u64, free.file.min(free_bytes)),
            false => (at_once as u64, free_bytes),
        };
        progress::space(TokenSpace {
            needed_bytes,
            free_bytes,
        });
        if SURE * needed_bytes as f64 <= free_bytes as f64 {
            return Ok(());
        }
        Err(DataError::NoRoom {
            folder: self.folder.to_owned(),
            needed_bytes,
            free_bytes,
        })
    }
}

/// Bytes that can be written.
struct Free {
    /// Bytes free in the folder's file system.
    disk: u64,
    /// Bytes that one file may take.
    file: u64,
}

impl Free {
    /// `None` where the system does not say.
    #[cfg(target_os = "linux")]
    fn of(folder: &Path) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
        // SAFETY: plain structures, for which zeros are a value.
        let (mut system, mut limit) =
            unsafe { (std::mem::zeroed::<libc::statvfs>(), std::mem::zeroed::<libc::rlimit>()) };
        // SAFETY: the path ends in a zero and outlives the call, as the structure does.
        if unsafe { libc::statvfs(path.as_ptr(), &raw mut system) } != 0 {
            return None;
        }
        // SAFETY: the structure outlives the call.
        let asked = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
        Some(Self {
            disk: system.f_bavail.saturating_mul(system.f_frsize),
            file: match asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY {
                true => limit.rlim_cur,
                false => u64::MAX,
            },
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_: &Path) -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_writer::Set;
    use super::super::tokens::{RowKind, TokenRow, Width};
    use super::*;

    #[test]
    fn more_than_a_disk_has_is_refused_after_the_first_rows() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::in_memory(Width::Two);
        let row = TokenRow {
            ids: vec![1; 500],
            labels: vec![1; 500],
            kind: RowKind::Whole,
        };
        writer.push(Set::Train, Some(row)).unwrap();
        let mut space = DiskSpace::new(folder.path());
        space.look(&writer, 0.5).unwrap();
        // Just looked at.
        space.next = 1.0;
        space.look(&writer, 1e-15).unwrap();
        let error = DiskSpace::new(folder.path()).look(&writer, 1e-15).unwrap_err();
        let DataError::NoRoom { needed_bytes, .. } = error else {
            panic!("{error}")
        };
        // 1,000 bytes of tokens and 16 of the row, which lie there twice while they become one file.
        assert_eq!(needed_bytes, (1032.0_f64 / 1e-15) as u64);
    }
}
