//! Writes tables row by row: into memory, or into the files that become a cache file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use super::RowLocation;
use super::checksum::Checksum;
use super::notes::{Notes, RowNotes};
use super::tokens::{
    Extent, NO_TARGET, OWN_LABELS, PAIRED, ROW_BYTES, RUN_BYTES, RUNNING, RowKind, Tables, TokenRow, TokenTable, Width,
};

/// Table that a row goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    Train,
    HeldOut,
}

/// Destination of the bytes of a part.
#[derive(Debug)]
pub(super) enum Sink {
    Memory(Vec<u8>),
    File(BufWriter<File>),
}

impl Sink {
    /// A file of which this writes the end.
    pub(super) fn file(file: File) -> Self {
        Self::File(BufWriter::with_capacity(1 << 18, file))
    }
}

impl Default for Sink {
    fn default() -> Self {
        Self::Memory(Vec::new())
    }
}

/// A part with what was written to it.
#[derive(Debug, Default)]
pub(super) struct TablePart {
    pub sink: Sink,
    pub bytes: u64,
    pub checksum: Checksum,
}

impl TablePart {
    pub(super) fn new(sink: Sink) -> Self {
        Self {
            sink,
            ..Self::default()
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.checksum.add(bytes);
        match &mut self.sink {
            Sink::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok(())
            }
            Sink::File(file) => file.write_all(bytes),
        }
    }
}

/// Writes one table. The default writes into memory.
#[derive(Debug)]
pub(super) struct TableWriter {
    width: Width,
    /// Words, rows, runs.
    pub parts: [TablePart; 3],
    pub extent: Extent,
}

impl TableWriter {
    pub(super) fn new(width: Width, sinks: [Sink; 3]) -> Self {
        Self {
            width,
            parts: sinks.map(TablePart::new),
            extent: Extent::default(),
        }
    }

    /// Adds a row; `None` counts an empty one.
    pub(super) fn push(&mut self, row: Option<TokenRow>) -> io::Result<()> {
        self.extent.counts.read += 1;
        let Some(row) = row else {
            self.extent.counts.empty += 1;
            return Ok(());
        };
        let [words, rows, runs] = &mut self.parts;
        let is_own = row
            .ids
            .iter()
            .zip(&row.labels)
            .all(|(id, label)| label == id || *label == NO_TARGET);
        let mut first = self.extent.words;
        first |= match row.kind {
            RowKind::Whole => 0,
            RowKind::Running => RUNNING,
            RowKind::Pair => PAIRED,
        };
        put_words(words, self.width, &row.ids)?;
        self.extent.words += row.ids.len() as u64;
        if !is_own {
            first |= OWN_LABELS;
            let known = |label: &u32| if *label == NO_TARGET { 0 } else { *label };
            let labels: Vec<u32> = row.labels.iter().map(known).collect();
            put_words(words, self.width, &labels)?;
            self.extent.words += labels.len() as u64;
            self.extent.highest = self.extent.highest.max(highest(&labels));
        }
        self.extent.highest = self.extent.highest.max(highest(&row.ids));
        let counted = |count: u64| u32::try_from(count).map_err(|_| io::Error::other("more rows than can be counted"));
        counted(self.extent.rows)?;
        let first_run = counted(self.extent.runs)?;
        let mut entry = [0; ROW_BYTES];
        entry[..8].copy_from_slice(&first.to_ne_bytes());
        entry[8..12].copy_from_slice(&(row.ids.len() as u32).to_ne_bytes());
        entry[12..].copy_from_slice(&first_run.to_ne_bytes());
        rows.put(&entry)?;
        self.extent.rows += 1;
        for (others, targets) in runs_of(&row.labels) {
            let mut entry = [0; RUN_BYTES];
            entry[..4].copy_from_slice(&others.to_ne_bytes());
            entry[4..].copy_from_slice(&targets.to_ne_bytes());
            runs.put(&entry)?;
            self.extent.runs += 1;
        }
        Ok(())
    }

    /// The table, where it was written into memory.
    fn into_table(self) -> Option<TokenTable> {
        let [words, rows, runs] = self.parts.map(|part| match part.sink {
            Sink::Memory(bytes) => bytes,
            Sink::File(_) => Vec::new(),
        });
        let first = [0, words.len(), words.len() + rows.len()];
        let bytes = [words, rows, runs].concat();
        TokenTable::new(Arc::new(bytes), self.width, self.extent, first)
    }
}

/// Bytes on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileBytes {
    /// Bytes of the whole file.
    pub all: u64,
    /// Bytes that there are at most at once, while one part after the other is copied into the file and removed.
    pub at_once: u64,
}

/// Writes both tables.
#[derive(Debug)]
pub(super) struct TokenWriter {
    pub width: Width,
    pub train: TableWriter,
    pub held_out: TableWriter,
    pub notes: Notes,
}

impl TokenWriter {
    /// Makes a writer into memory.
    pub(super) fn in_memory(width: Width) -> Self {
        Self {
            width,
            train: TableWriter::new(width, Default::default()),
            held_out: TableWriter::new(width, Default::default()),
            notes: Notes::default(),
        }
    }

    /// Bytes of the file that the parts become.
    pub(super) fn file_bytes(&self) -> FileBytes {
        let [first, beside] = [&self.train, &self.held_out].map(|table| table.parts.each_ref().map(|part| part.bytes));
        let parts = first.into_iter().chain(beside);
        let most_beside = parts.clone().skip(1).max().unwrap_or_default();
        let all = parts.sum();
        FileBytes {
            all,
            at_once: all + most_beside,
        }
    }

    pub(super) fn push(&mut self, set: Set, row: Option<TokenRow>) -> io::Result<()> {
        match set {
            Set::Train => self.train.push(row),
            Set::HeldOut => self.held_out.push(row),
        }
    }

    /// Keeps what is to be told of a row.
    pub(super) fn note(&mut self, set: Set, location: &RowLocation, notes: RowNotes) {
        match set {
            Set::Train => self.notes.train.add(location, notes),
            Set::HeldOut => self.notes.held_out.add(location, notes),
        }
    }

    /// The tables, where they were written into memory.
    pub(super) fn into_tables(self) -> Option<Tables> {
        Some(Tables {
            train: self.train.into_table()?,
            held_out: self.held_out.into_table()?,
            notes: self.notes,
        })
    }
}

fn put_words(part: &mut TablePart, width: Width, words: &[u32]) -> io::Result<()> {
    let bytes: Vec<u8> = match width {
        Width::Four => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
        Width::Two => {
            let narrow = |word: &u32| u16::try_from(*word).map(u16::to_ne_bytes);
            let words: Result<Vec<_>, _> = words.iter().map(narrow).collect();
            let beyond = |_| io::Error::other("the tokenizer gave a token beyond its own vocabulary");
            words.map_err(beyond)?.concat()
        }
    };
    part.put(&bytes)
}

fn highest(words: &[u32]) -> u64 {
    words.iter().max().copied().map_or(0, u64::from)
}

/// (tokens that are no targets, targets behind them), again and again; nothing for a row that is learnt whole.
fn runs_of(labels: &[u32]) -> Vec<(u32, u32)> {
    let mut runs = Vec::new();
    let mut rest = labels;
    while !rest.is_empty() {
        let others = rest.iter().take_while(|label| **label == NO_TARGET).count();
        let targets = rest[others..].iter().take_while(|label| **label != NO_TARGET).count();
        runs.push((others as u32, targets as u32));
        rest = &rest[others + targets..];
    }
    match runs[..] {
        [(0, _)] => Vec::new(),
        _ => runs,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row of ids below `most`, some of which are targets.
    pub(super) fn any_row(most: u32) -> impl Strategy<Value = TokenRow> {
        let token = (0..most, prop::option::of(prop::option::of(0..most)));
        (prop::collection::vec(token, 1..20), any::<bool>()).prop_map(|(tokens, is_running)| TokenRow {
            ids: tokens.iter().map(|(id, _)| *id).collect(),
            labels: tokens
                .iter()
                .map(|(id, label)| label.map_or(NO_TARGET, |other| other.unwrap_or(*id)))
                .collect(),
            kind: if is_running { RowKind::Running } else { RowKind::Whole },
        })
    }

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(
            rows in prop::collection::vec(any_row(1 << 16), 0..20),
            is_wide: bool,
            cut in 0_usize..20,
        ) {
            let width = if is_wide { Width::Four } else { Width::Two };
            let mut writer = TokenWriter::in_memory(width);
            for row in &rows {
                writer.push(Set::Train, Some(row.clone())).unwrap();
            }
            writer.push(Set::HeldOut, None).unwrap();
            let tables = writer.into_tables().unwrap();
            prop_assert!(tables.train.is_sound() && tables.held_out.is_sound());
            prop_assert_eq!(tables.train.rows().count(), rows.len());
            for (row, written) in tables.train.rows().zip(&rows) {
                let length = written.ids.len();
                prop_assert_eq!((row.tokens, row.kind), (length, written.kind));
                prop_assert_eq!(&tables.train.ids(&row, 0..length), &written.ids);
                prop_assert_eq!(&tables.train.labels(&row, 0..length), &written.labels);
                let range = cut.min(length)..length;
                let labels = &written.labels[range.clone()];
                prop_assert_eq!(tables.train.labels(&row, range.clone()), labels);
                let targets = labels.iter().filter(|label| **label != NO_TARGET).count();
                prop_assert_eq!(tables.train.count_targets(&row, range), targets);
            }
        }
    }

    #[test]
    fn ids_that_do_not_fit_are_refused() {
        let row = TokenRow {
            ids: vec![1 << 16],
            labels: vec![1 << 16],
            kind: RowKind::Whole,
        };
        assert!(
            TokenWriter::in_memory(Width::Two)
                .push(Set::Train, Some(row.clone()))
                .is_err()
        );
        assert!(TokenWriter::in_memory(Width::Four).push(Set::Train, Some(row)).is_ok());
    }
}
