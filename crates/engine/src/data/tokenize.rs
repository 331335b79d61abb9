//! Tables of tokens from files, a stretch of rows at a time: no more of a file is held than its reader holds.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::disk_space::DiskSpace;
use super::encode::encode;
use super::encoded_row::EncodedRow;
use super::example::Example;
use super::format::RowParser;
use super::learnt::Learnt;
use super::meter::{Meter, bytes_of};
use super::progress::{self, ReadingStage, Tokenized};
use super::readers::{count_rows, read_rows};
use super::split::{HeldOutRows, Located, PieceJoiner};
use super::token_writer::{Set, TokenWriter};
use super::{DataError, Vocabulary};
use peft_tune_core::recipe::{DataSettings, HeldOut};

/// Stack of the threads that read and tokenise where data are made ready for other processes: less than any thread of theirs has, which
/// read the same tokenizer and template behind them.
pub const TOKENIZING_STACK_BYTES: usize = 3 << 19;
/// Rows that are tokenised at once ...
const ROWS_AT_ONCE: usize = 2048;
/// ... or bytes of their text.
const BYTES_AT_ONCE: usize = 4 << 20;
/// Part of that many that the first ones are, by which the space for all tokens is estimated.
const FIRST: usize = 16;

/// Why there are no tables.
#[derive(Debug)]
pub(super) enum Failure {
    Data(DataError),
    /// Failure to write the tables.
    Write(io::Error),
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self::Data(error)
    }
}

/// Files and settings that are tokenised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub settings: &'a DataSettings,
    pub vocabulary: &'a Vocabulary,
    /// Seed that decides which rows a held-out fraction takes.
    pub seed: u64,
    /// Rows of the training files, where they are known already.
    pub rows: &'a [Option<usize>],
}

/// Reads and tokenises the rows of a source into `writer`, whose file lies in `folder`. Both sets keep the order of the files.
pub(super) fn tokenize(source: Source, writer: &mut TokenWriter, folder: Option<&Path>) -> Result<(), Failure> {
    let Source {
        settings,
        vocabulary,
        seed,
        rows,
    } = source;
    let of_bytes = bytes_of(settings.train.files().chain(settings.held_out.files()));
    let mut work = Tokenizing {
        settings,
        vocabulary,
        writer,
        meter: &Meter::default(),
        of_bytes,
        tokenised: 0,
        space: folder.map(DiskSpace::new),
        joiners: Default::default(),
        waiting: Vec::new(),
        waiting_bytes: 0,
        pool: workers(settings.tokenizing_workers)?,
    };
    let started = Instant::now();
    let limit = settings.max_rows.unwrap_or(usize::MAX);
    let (fraction, files) = match &settings.held_out {
        HeldOut::Fraction(fraction) => (*fraction, &[][..]),
        files => (0.0, files.files()),
    };
    let train: Vec<PathBuf> = settings.train.files().cloned().collect();
    let (expected, chosen) = match fraction > 0.0 {
        true => {
            let expected = count_rows(&train, rows, limit);
            (expected, HeldOutRows::new(expected, fraction, seed))
        }
        false => (0, HeldOutRows::default()),
    };
    progress::begin(ReadingStage::Tokenising, of_bytes);
    let found = work.read(&train, limit, &chosen, Set::Train)?;
    if fraction > 0.0 {
        if found < 2 {
            return Err(DataError::TooFewRows { rows: found }.into());
        }
        // Which rows are held out depends on how many there are.
        if found != expected {
            return Err(DataError::OtherCount { expected, found }.into());
        }
    }
    work.read(files, usize::MAX, &HeldOutRows::default(), Set::HeldOut)?;
    progress::tokenized(&Tokenized {
        rows: work.tokenised as u64,
        bytes: work.meter.bytes(),
        seconds: started.elapsed().as_secs_f64(),
        workers: work
            .pool
            .as_ref()
            .map_or_else(rayon::current_num_threads, ThreadPool::current_num_threads),
    });
    Ok(())
}

/// Threads of their own, as many as asked for; `None` for the caller's.
fn workers(asked: Option<usize>) -> Result<Option<ThreadPool>, DataError> {
    let Some(count) = asked.filter(|count| *count != rayon::current_num_threads()) else {
        return Ok(None);
    };
    let pool = ThreadPoolBuilder::new()
        .num_threads(count)
        .stack_size(TOKENIZING_STACK_BYTES)
        .thread_name(|number| format!("tokenize-{number}"))
        .build();
    pool.map(Some).map_err(|error| DataError::Workers {
        count,
        message: error.to_string(),
    })
}

/// Rows on their way.
struct Tokenizing<'a> {
    settings: &'a DataSettings,
    vocabulary: &'a Vocabulary,
    writer: &'a mut TokenWriter,
    meter: &'a Meter,
    /// Bytes that the meter will have seen at the end.
    of_bytes: u64,
    /// Rows whose tokens were written.
    tokenised: usize,
    /// Space where the tokens go; `None` for memory.
    space: Option<DiskSpace<'a>>,
    /// Joiners of pieces in the training and in the held-out rows.
    joiners: [PieceJoiner; 2],
    /// Rows that are tokenised next, in order.
    waiting: Vec<(Set, Located)>,
    waiting_bytes: usize,
    /// The threads that tokenise, where they are not the caller's.
    pool: Option<ThreadPool>,
}

impl Tokenizing<'_> {
    /// Takes at most `limit` rows of `files`: the chosen ones to the held-out set, the others to `set`. Returns how many.
    fn read(&mut self, files: &[PathBuf], limit: usize, chosen: &HeldOutRows, set: Set) -> Result<usize, Failure> {
        let tokenizer = self.vocabulary.tokenizer();
        let has_template = tokenizer.is_some_and(|tokenizer| tokenizer.chat_template().is_some());
        let (mut count, mut unwritten) = (0, None);
        for path in files {
            let before = count;
            if before >= limit {
                break;
            }
            let mut parser = RowParser::new(self.settings.format, &self.settings.columns, has_template);
            let meter = self.meter;
            let read = read_rows(path, meter, &mut |location, record| {
                let example = parser.parse(&location, record)?;
                progress::count();
                let set = if chosen.contain(count) { Set::HeldOut } else { set };
                count += 1;
                match self.take(set, (location, example)) {
                    Ok(()) if count < limit => Ok(ControlFlow::Continue(())),
                    Ok(()) => Ok(ControlFlow::Break(())),
                    Err(Failure::Data(error)) => Err(error),
                    Err(Failure::Write(error)) => {
                        unwritten = Some(error);
                        Ok(ControlFlow::Break(()))
                    }
                }
            });
            for (column, rows) in parser.unread {
                *self.writer.notes.unread.entry(column).or_default() += rows;
            }
            if let Some(error) = unwritten {
                return Err(Failure::Write(error));
            }
            if let Err(error) = read {
                // A row before it may be at fault, too, and the first one is told.
                self.flush()?;
                return Err(error.into());
            }
            if count == before {
                return Err(DataError::NoRows { path: path.clone() }.into());
            }
        }
        self.flush()?;
        Ok(count)
    }

    fn take(&mut self, set: Set, located: Located) -> Result<(), Failure> {
        match self.joiners[set as usize].push(located) {
            Some(located) => self.wait(set, located),
            None => Ok(()),
        }
    }

    fn wait(&mut self, set: Set, located: Located) -> Result<(), Failure> {
        self.waiting_bytes += located.1.bytes();
        self.waiting.push((set, located));
        let part = if self.tokenised == 0 { FIRST } else { 1 };
        match self.waiting.len() >= ROWS_AT_ONCE / part || self.waiting_bytes >= BYTES_AT_ONCE / part {
            true => self.encode(),
            false => Ok(()),
        }
    }

    /// Tokenises what was taken so far.
    fn flush(&mut self) -> Result<(), Failure> {
        for set in [Set::Train, Set::HeldOut] {
            if let Some(located) = self.joiners[set as usize].rest() {
                self.wait(set, located)?;
            }
        }
        self.encode()
    }

    /// Tokenises the waiting rows in parallel; they stay in order, and the first row at fault is the one that is told.
    fn encode(&mut self) -> Result<(), Failure> {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        // Rows behind one at fault need not be looked at; those before it may hold the one that is told.
        let at_fault = AtomicUsize::new(usize::MAX);
        let (vocabulary, learnt) = (self.vocabulary, Learnt::from(self.settings));
        let encoded = || -> Vec<_> {
            waiting
                .par_iter()
                .enumerate()
                .map(|(index, (_, (location, example)))| {
                    if index > at_fault.load(Relaxed) {
                        return Ok(EncodedRow::default());
                    }
                    let row = encode(location, example, vocabulary, learnt);
                    if row.is_err() {
                        at_fault.fetch_min(index, Relaxed);
                    }
                    progress::count();
                    row
                })
                .collect()
        };
        let rows = match &self.pool {
            Some(pool) => pool.install(encoded),
            None => encoded(),
        };
        for ((set, (location, _)), encoded) in waiting.iter().zip(rows) {
            let EncodedRow { row, notes } = encoded?;
            self.writer.push(*set, row).map_err(Failure::Write)?;
            self.writer.note(*set, location, notes);
        }
        self.tokenised += waiting.len();
        self.look_around()
    }

    /// Tells how far this is, and looks whether the rest will fit, too.
    fn look_around(&mut self) -> Result<(), Failure> {
        let of = |done: u64, all: u64| done as f64 / all.max(1) as f64;
        let mut share = of(self.meter.bytes(), self.of_bytes);
        // With held-out files, these come behind the rows that are limited.
        if let (Some(limit), []) = (self.settings.max_rows, self.settings.held_out.files()) {
            let (done, all) = (self.tokenised as u64, limit as u64);
            progress::rows(done, all);
            share = share.max(of(done, all));
        }
        match &mut self.space {
            Some(space) => Ok(space.look(self.writer, share)?),
            None => Ok(()),
        }
    }
}

impl Example {
    /// Bytes that it takes, about.
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.text.len(),
            Self::Completion { prompt, completion } => prompt.len() + completion.len(),
            Self::Chat(chat) => {
                let content = |message: &serde_json::Value| message["content"].as_str().map_or(64, str::len);
                chat.messages.iter().map(content).sum()
            }
            Self::Preference(row) => row.sequences.iter().map(Self::bytes).sum(),
            Self::Refused(_) => 0,
            Self::Tokenized { ids, .. } => 16 * ids.len(),
        }
    }
}
