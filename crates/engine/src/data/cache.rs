//! The tokenised cache on disk: one file per content, found by its key and mapped into memory.
//!
//! The key is a hash of everything that decides the tokens, so a file is never out of date, and the sequence length is
//! no part of it: rows are kept uncut. A file is written under another name and then renamed, so that two processes
//! may prepare the same data at once. Each part carries a checksum, and a file that does not match is written again.
//!
//! | 64-bit words | meaning |
//! |---|---|
//! | 1 | [`MAGIC`], in the machine's byte order |
//! | 4 | key |
//! | 1 | bytes of a token id |
//! | 2 x 6 | rows, runs, words, highest id, rows read, empty rows of the training and the held-out table |
//! | 2 x 3 | checksums of words, rows and runs of either |
//! | 1 | checksum of the above |
//! | rest | the parts of the training table, then those of the held-out one, each filled up to a whole word |
//! | 2 | bytes of the notes of rows, their checksum |
//! | rest | the notes, as JSON |

use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::WholeFile;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, UncheckedAdvice};

use super::cache_limit;
use super::checksum::Checksum;
use super::notes::Notes;
use super::progress::{self, ReadingStage};
use super::token_writer::{Sink, TablePart, TableWriter, TokenWriter};
use super::tokens::{Bytes, Extent, RowCounts, Tables, TokenTable, Width, part_bytes};

/// Hash of everything that decides the tokens.
pub(super) type Key = [u8; 32];

/// "PFTTOK" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"PFTTOK\x00\x04");
/// Most that notes of rows take, in bytes.
const NOTES_BYTES: usize = 1 << 24;
const HEADER_WORDS: usize = 25;
const HEADER_BYTES: usize = 8 * HEADER_WORDS;
/// Bytes of words up to which every reader looks them over.
const SMALL: usize = 256 << 20;
/// Bytes that are looked over before their memory is given back.
const BLOCK: usize = 8 << 20;

/// How much of a file is compared with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// All of it.
    Whole,
    /// All but the words of a large file: who made the data ready looked at them a moment ago.
    Entries,
}

/// A folder of cache files.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenCache<'a> {
    pub folder: &'a Path,
}

/// A cache file as it grows.
pub(super) struct CacheWriter {
    path: PathBuf,
    whole: WholeFile,
    key: Key,
    pub tokens: TokenWriter,
}

impl TokenCache<'_> {
    /// The tables under `key`; `None` where there are none or the file is damaged.
    pub(super) fn read(&self, key: &Key, check: Check) -> Option<Tables> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        // Files that were not used for long make room for others. Who may not write keeps them no younger.
        let _ = file.set_modified(std::time::SystemTime::now());
        // SAFETY: cache files are written under another name, renamed when complete, and never changed afterwards, so
        // the mapped bytes stay as they are for as long as the map lives. A file that someone else truncates is
        // outside of what can be guarded against, as for every mapped file.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        let tables = parse(map, key, check);
        if tables.is_none() {
            tracing::warn!(path = %path.display(), "the tokenised cache is damaged and will be written anew");
        }
        tables
    }

    /// Begins the file under `key`.
    pub(super) fn create(&self, key: &Key, width: Width) -> io::Result<CacheWriter> {
        std::fs::create_dir_all(self.folder)?;
        cache_limit::remove_unfinished(self.folder);
        let path = self.path(key);
        let whole = WholeFile::create(&path, true)?;
        let mut file = whole.handle()?;
        file.write_all(&[0; HEADER_BYTES])?;
        let beside = || Ok::<_, io::Error>(Sink::file(tempfile::tempfile_in(self.folder)?));
        let train = [Sink::file(file), beside()?, beside()?];
        let held_out = [beside()?, beside()?, beside()?];
        Ok(CacheWriter {
            path,
            whole,
            key: *key,
            tokens: TokenWriter {
                width,
                train: TableWriter::new(width, train),
                held_out: TableWriter::new(width, held_out),
                notes: Notes::default(),
            },
        })
    }

    fn path(&self, key: &Key) -> PathBuf {
        let name = hexadecimal(&key[..16]);
        self.folder.join(format!("{name}.tokens"))
    }
}

impl CacheWriter {
    /// Puts the file under its name.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let header = header(&self.key, &self.tokens);
        let all = self.tokens.file_bytes().all;
        let tables = [&mut self.tokens.train, &mut self.tokens.held_out];
        let mut parts = tables.into_iter().flat_map(|table| &mut table.parts);
        let first = parts.next().expect("a table has three parts");
        progress::begin(ReadingStage::Storing, all - first.bytes);
        let mut file = BufWriter::with_capacity(1 << 20, into_file(first)?);
        fill_up(&mut file, first.bytes)?;
        for part in parts {
            let mut beside = into_file(part)?;
            beside.seek(SeekFrom::Start(0))?;
            copy(&mut beside, &mut file)?;
            fill_up(&mut file, part.bytes)?;
        }
        let notes = serde_json::to_vec(&self.tokens.notes)?;
        for word in [notes.len() as u64, Checksum::of(&notes)] {
            file.write_all(&word.to_ne_bytes())?;
        }
        file.write_all(&notes)?;
        let mut file = file.into_inner()?;
        file.seek(SeekFrom::Start(0))?;
        for word in header {
            file.write_all(&word.to_ne_bytes())?;
        }
        self.whole.finish()?;
        if let Some(folder) = self.path.parent() {
            cache_limit::make_room(folder, &self.path);
        }
        Ok(())
    }
}

fn into_file(part: &mut TablePart) -> io::Result<File> {
    match std::mem::take(&mut part.sink) {
        Sink::File(file) => Ok(file.into_inner()?),
        Sink::Memory(_) => Err(io::Error::other("a part of a cache file is not a file")),
    }
}

fn copy(from: &mut File, to: &mut impl Write) -> io::Result<()> {
    let mut block = vec![0; 1 << 20];
    loop {
        match from.read(&mut block)? {
            0 => return Ok(()),
            read => {
                to.write_all(&block[..read])?;
                progress::pass(read as u64);
            }
        }
        progress::count();
    }
}

/// Zeros up to a whole word behind a part of so many bytes.
fn fill_up(file: &mut impl Write, bytes: u64) -> io::Result<()> {
    file.write_all(&[0; 8][..(bytes.wrapping_neg() % 8) as usize])
}

fn header(key: &Key, tokens: &TokenWriter) -> [u64; HEADER_WORDS] {
    let mut header = [0_u64; HEADER_WORDS];
    header[0] = MAGIC;
    for (word, bytes) in header[1..5].iter_mut().zip(key.chunks_exact(8)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    header[5] = tokens.width.bytes() as u64;
    for (at, table) in [(0, &tokens.train), (1, &tokens.held_out)] {
        let Extent {
            rows,
            runs,
            words,
            highest,
            counts: RowCounts { read, empty },
        } = table.extent;
        header[6 + 6 * at..12 + 6 * at].copy_from_slice(&[rows, runs, words, highest, read, empty]);
        for (sum, part) in header[18 + 3 * at..].iter_mut().zip(&table.parts) {
            *sum = part.checksum.value();
        }
    }
    header[24] = checksum_of(&header[..24]);
    header
}

fn checksum_of(words: &[u64]) -> u64 {
    Checksum::of(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

fn parse(map: Mmap, key: &Key, check: Check) -> Option<Tables> {
    let mut header = [0_u64; HEADER_WORDS];
    for (word, bytes) in header.iter_mut().zip(map.get(..HEADER_BYTES)?.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    let stored_key: Vec<u8> = header[1..5].iter().flat_map(|word| word.to_be_bytes()).collect();
    if header[0] != MAGIC || stored_key != key || checksum_of(&header[..24]) != header[24] {
        return None;
    }
    let width = match header[5] {
        2 => Width::Two,
        4 => Width::Four,
        _ => return None,
    };
    progress::begin(ReadingStage::Checking, map.len() as u64);
    let bytes = MappedBytes(map);
    let mut ranges = Vec::new();
    let mut extents = Vec::new();
    let mut at = HEADER_BYTES;
    for words in header[6..18].chunks_exact(6) {
        let extent = Extent {
            rows: words[0],
            runs: words[1],
            words: words[2],
            highest: words[3],
            counts: RowCounts {
                read: words[4],
                empty: words[5],
            },
        };
        for length in part_bytes(width, &extent)? {
            let end = at.checked_add(length)?;
            ranges.push(at..end);
            at = end.checked_next_multiple_of(8)?;
            if bytes.as_slice().get(end..at)?.iter().any(|byte| *byte != 0) {
                return None;
            }
        }
        extents.push(extent);
    }
    let notes = parse_notes(bytes.as_slice().get(at..)?)?;
    for ((number, range), sum) in ranges.iter().enumerate().zip(&header[18..24]) {
        let is_words = number % 3 == 0;
        if (check == Check::Whole || !is_words || range.len() <= SMALL) && bytes.sum(range) != *sum {
            return None;
        }
    }
    let bytes: Arc<dyn Bytes> = Arc::new(bytes);
    let table = |at: usize| {
        let first = [0, 1, 2].map(|part| ranges[3 * at + part].start);
        let table = TokenTable::new(Arc::clone(&bytes), width, extents[at], first)?;
        table.is_sound().then_some(table)
    };
    Some(Tables {
        train: table(0)?,
        held_out: table(1)?,
        notes,
    })
}

/// The notes at the end of a file.
fn parse_notes(bytes: &[u8]) -> Option<Notes> {
    let (words, notes) = bytes.split_at_checked(16)?;
    let word = |at: usize| Some(u64::from_ne_bytes(words[at..at + 8].try_into().ok()?));
    let is_whole = notes.len() <= NOTES_BYTES && word(0)? == notes.len() as u64 && word(8)? == Checksum::of(notes);
    is_whole.then(|| serde_json::from_slice(notes).ok()).flatten()
}

/// The bytes of a mapped cache file.
struct MappedBytes(Mmap);

impl MappedBytes {
    fn sum(&self, range: &Range<usize>) -> u64 {
        let mut checksum = Checksum::default();
        for start in range.clone().step_by(BLOCK) {
            let block = start..range.end.min(start + BLOCK);
            checksum.add(&self.0[block.clone()]);
            progress::pass(block.len() as u64);
            progress::count();
            self.release(block);
        }
        checksum.value()
    }
}

impl Bytes for MappedBytes {
    fn as_slice(&self) -> &[u8] {
        &self.0
    }

    fn release(&self, range: Range<usize>) {
        if range.len() < 1 << 16 {
            return;
        }
        // SAFETY: the map is of a file and never written to, so that bytes whose memory was given back are read from
        // the file again, where they are the same. A refusal changes nothing.
        let _ = unsafe {
            self.0
                .unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_writer::Set;
    use super::super::tokens::{RowKind, TokenRow};
    use super::*;

    fn write(cache: &TokenCache, key: &Key, train: &[&[u32]], held_out: &[&[u32]]) {
        let mut writer = cache.create(key, Width::Two).unwrap();
        for (set, rows) in [(Set::Train, train), (Set::HeldOut, held_out)] {
            for row in rows {
                let row = TokenRow {
                    ids: row.to_vec(),
                    labels: row.iter().map(|id| id + 1).collect(),
                    kind: RowKind::Running,
                };
                writer.tokens.push(set, Some(row)).unwrap();
            }
            writer.tokens.push(set, None).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn what_was_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TokenCache {
            folder: &folder.path().join("new"),
        };
        assert!(cache.read(&[7; 32], Check::Whole).is_none());
        write(&cache, &[7; 32], &[&[1, 2, 3], &[4]], &[&[5, 6]]);
        let tables = cache.read(&[7; 32], Check::Whole).unwrap();
        let (first, second) = (tables.train.row(0), tables.train.row(1));
        assert_eq!(tables.train.ids(&first, 0..3), [1, 2, 3]);
        assert_eq!(tables.train.labels(&second, 0..1), [5]);
        assert_eq!(tables.held_out.ids(&tables.held_out.row(0), 0..2), [5, 6]);
        let counts = RowCounts { read: 3, empty: 1 };
        assert_eq!(
            (tables.train.extent().counts, tables.train.extent().highest),
            (counts, 5)
        );
        assert_eq!(std::fs::read_dir(cache.folder).unwrap().count(), 1);
        // One that is given up leaves nothing.
        drop(cache.create(&[8; 32], Width::Four).unwrap());
        assert_eq!(std::fs::read_dir(cache.folder).unwrap().count(), 1);
    }

    #[test]
    fn any_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TokenCache { folder: folder.path() };
        let key = [9; 32];
        write(&cache, &key, &[&[1, 2, 3]], &[&[5]]);
        let path = cache.path(&key);
        let whole = std::fs::read(&path).unwrap();
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 0x40;
            std::fs::write(&path, damaged).unwrap();
            assert!(cache.read(&key, Check::Whole).is_none(), "byte {position}");
        }
        for length in [0, 1, HEADER_BYTES, whole.len() - 4] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(cache.read(&key, Check::Whole).is_none(), "length {length}");
        }
        std::fs::write(&path, whole).unwrap();
        assert!(cache.read(&key, Check::Whole).is_some());
        let mut other = key;
        other[31] ^= 1;
        // Another key whose file has the same name: the name holds half the key only.
        assert!(cache.read(&other, Check::Whole).is_none());
    }
}
