//! How far the reading of data is, for who watches over it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static DONE: AtomicU64 = AtomicU64::new(0);

/// Rows that this process has counted, read or tokenised so far (each counts once for any of these), and blocks of files
/// that it looked over. The number grows while data are made ready, unless a row is beyond what a tokenizer or a template
/// can end.
pub fn done_so_far() -> u64 {
    DONE.load(Relaxed)
}

pub(super) fn count() {
    DONE.fetch_add(1, Relaxed);
}
