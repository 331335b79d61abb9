//! How much of the files was read, for who watches and for who estimates from the first rows.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::progress;

/// Bytes of the rows that were read: what a reader holds beyond them does not count.
#[derive(Debug, Default)]
pub(super) struct Meter(Cell<u64>);

impl Meter {
    pub(super) fn bytes(&self) -> u64 {
        self.0.get()
    }

    pub(super) fn pass(&self, bytes: u64) {
        self.0.set(self.0.get() + bytes);
        progress::pass(bytes);
    }

    /// Row `index` of `rows`, counted from 0, of a file of so many bytes that is not read row by row.
    pub(super) fn pass_row(&self, index: u64, rows: u64, bytes: u64) {
        let upto = |row: u64| u128::from(row) * u128::from(bytes) / u128::from(rows.max(1));
        self.pass((upto(index + 1) - upto(index)) as u64);
    }
}

/// Bytes of all of `files`; those that cannot be looked at have none.
pub(super) fn bytes_of<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> u64 {
    files.into_iter().map(|path| bytes_of_file(path)).sum()
}

/// Bytes of a file; 0 where it cannot be looked at.
pub(super) fn bytes_of_file(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}
