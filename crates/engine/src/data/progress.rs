//! How far the reading of data is, for who watches over it.
//!
//! A process makes one set of data ready at a time, so that this is one state of the process. Nothing is decided by it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Stage of the reading of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadingStage {
    /// Files are hashed, to find their tokens in the cache; lines are counted on the way.
    Hashing,
    /// Rows are counted, to choose those that are held out.
    Counting,
    Tokenising,
    /// The parts of the tokens become one file.
    Storing,
    /// The tokens of an earlier reading are looked over.
    Checking,
}

/// How far the reading of data is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataProgress {
    /// `None` before it begins.
    pub stage: Option<ReadingStage>,
    /// Bytes of files that went through this stage.
    pub bytes: u64,
    /// Bytes of all files that go through this stage.
    pub of_bytes: u64,
    /// Rows that were read of those that `max_rows` lets through.
    pub rows: Option<(u64, u64)>,
    /// Space that the tokens take on the disk; `None` before some rows were tokenised, and where they go to memory.
    pub space: Option<TokenSpace>,
}

/// Space that the tokens of all rows take on the disk, by those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSpace {
    /// Bytes while they are written, at most.
    pub needed_bytes: u64,
    /// Bytes that are free, with what was written already.
    pub free_bytes: u64,
}

impl DataProgress {
    /// The share of this stage that is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        let of = |done: u64, all: u64| (done as f64 / all.max(1) as f64).min(1.0);
        let by_rows = self.rows.map_or(0.0, |(done, all)| of(done, all));
        by_rows.max(of(self.bytes, self.of_bytes))
    }
}

/// Amount and time of tokenising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokenized {
    pub rows: u64,
    /// Bytes of the files that were read.
    pub bytes: u64,
    pub seconds: f64,
    /// Threads that tokenised.
    pub workers: usize,
}

static TOKENIZED: Mutex<Option<Tokenized>> = Mutex::new(None);

/// Amount that this process has tokenised, all sets together; `None` where it found all in the cache.
pub fn tokenized_so_far() -> Option<Tokenized> {
    *TOKENIZED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set is tokenised.
pub(super) fn tokenized(set: &Tokenized) {
    let mut all = TOKENIZED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = all.unwrap_or_default();
    *all = Some(Tokenized {
        rows: before.rows + set.rows,
        bytes: before.bytes + set.bytes,
        seconds: before.seconds + set.seconds,
        workers: set.workers,
    });
}

static DONE: AtomicU64 = AtomicU64::new(0);
static NOW: Mutex<DataProgress> = Mutex::new(DataProgress {
    stage: None,
    bytes: 0,
    of_bytes: 0,
    rows: None,
    space: None,
});

/// Rows that this process has counted, read or tokenised so far (each counts once for any of these), and blocks of files
/// that it looked over. The number grows while data are made ready, unless a row is beyond what a tokenizer or a template
/// can end.
pub fn done_so_far() -> u64 {
    DONE.load(Relaxed)
}

/// How far this process is with its data.
pub fn reading_now() -> DataProgress {
    *NOW.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn count() {
    DONE.fetch_add(1, Relaxed);
}

/// A stage begins that so many bytes go through.
pub(super) fn begin(stage: ReadingStage, of_bytes: u64) {
    change(|now| {
        *now = DataProgress {
            stage: Some(stage),
            of_bytes,
            ..DataProgress::default()
        };
    });
}

/// Counts `bytes` more as through.
pub(super) fn pass(bytes: u64) {
    change(|now| now.bytes += bytes);
}

pub(super) fn rows(done: u64, all: u64) {
    change(|now| now.rows = Some((done, all)));
}

pub(super) fn space(space: TokenSpace) {
    change(|now| now.space = Some(space));
}

fn change(change: impl FnOnce(&mut DataProgress)) {
    change(&mut NOW.lock().unwrap_or_else(PoisonError::into_inner));
}
