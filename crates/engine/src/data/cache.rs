//! The tokenised cache on disk: one file per content, found by its key and mapped into memory.
//!
//! The key is a hash of everything that decides the tokens, so a file is never out of date, and the sequence length is
//! no part of it: rows are kept uncut. A file is written under another name and then renamed, so that two processes
//! may prepare the same data at once; it carries a checksum, and one that does not match is written again.
//!
//! | 64-bit words | meaning |
//! |---|---|
//! | 1 | [`MAGIC`], in the machine's byte order |
//! | 4 | key |
//! | 2 x 4 | rows, tokens, rows read, empty rows of the training and the held-out table |
//! | 1 | checksum of the above and of the tables |
//! | rest | the tables (see `tokens.rs`) |

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use super::tokens::{Extent, RowCounts, TableBuilder, Tables, Words};

/// Hash of everything that decides the tokens.
pub(super) type Key = [u8; 32];

/// "PFTTOK" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"PFTTOK\x00\x01");
const HEADER_WORDS: usize = 14;
const HEADER_BYTES: usize = 8 * HEADER_WORDS;

/// A folder of cache files.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenCache<'a> {
    pub folder: &'a Path,
}

impl TokenCache<'_> {
    /// The tables under `key`; `None` where there are none or the file is damaged.
    pub(super) fn read(&self, key: &Key) -> Option<Tables> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        // SAFETY: cache files are written under another name, renamed when complete, and never changed afterwards, so
        // the mapped bytes stay as they are for as long as the map lives. A file that someone else truncates is
        // outside of what can be guarded against, as for every mapped file.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        let tables = parse(map, key);
        if tables.is_none() {
            tracing::warn!(path = %path.display(), "the tokenised cache is damaged and will be written anew");
        }
        tables
    }

    /// Writes the tables under `key`.
    pub(super) fn write(&self, key: &Key, train: &TableBuilder, held_out: &TableBuilder) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(self.folder)?;
        let path = self.path(key);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        let result = write_file(&unfinished, key, train, held_out).and_then(|()| std::fs::rename(&unfinished, &path));
        if result.is_err() {
            // Nothing more can be done about a file that cannot even be removed.
            let _ = std::fs::remove_file(&unfinished);
        }
        result
    }

    fn path(&self, key: &Key) -> PathBuf {
        let name: String = key.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{name}.tokens"))
    }
}

fn write_file(path: &Path, key: &Key, train: &TableBuilder, held_out: &TableBuilder) -> io::Result<()> {
    let parts = [train.parts(), held_out.parts()].concat();
    let mut header = [0_u64; HEADER_WORDS];
    header[0] = MAGIC;
    for (word, bytes) in header[1..5].iter_mut().zip(key.chunks_exact(8)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    for (words, extent) in header[5..13]
        .chunks_exact_mut(4)
        .zip([train.extent(), held_out.extent()])
    {
        let counts = extent.counts;
        words.copy_from_slice(&[extent.rows as u64, extent.tokens as u64, counts.read, counts.empty]);
    }
    let mut checksum = Checksum::new(&header[..13]);
    parts.iter().for_each(|part| checksum.add(part));
    header[13] = checksum.0;

    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for word in header {
        file.write_all(&word.to_ne_bytes())?;
    }
    for part in parts {
        for word in part {
            file.write_all(&word.to_ne_bytes())?;
        }
    }
    file.into_inner()?.sync_all()
}

fn parse(map: Mmap, key: &Key) -> Option<Tables> {
    let mut header = [0_u64; HEADER_WORDS];
    for (word, bytes) in header.iter_mut().zip(map.get(..HEADER_BYTES)?.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    let stored_key: Vec<u8> = header[1..5].iter().flat_map(|word| word.to_be_bytes()).collect();
    if header[0] != MAGIC || stored_key != key {
        return None;
    }
    let extent = |words: &[u64]| {
        Some(Extent {
            rows: usize::try_from(words[0]).ok()?,
            tokens: usize::try_from(words[1]).ok()?,
            counts: RowCounts {
                read: words[2],
                empty: words[3],
            },
        })
    };
    let (train, held_out) = (extent(&header[5..9])?, extent(&header[9..13])?);
    let words = MappedWords(map);
    if words.as_slice().len() != train.words()?.checked_add(held_out.words()?)? {
        return None;
    }
    let mut checksum = Checksum::new(&header[..13]);
    checksum.add(words.as_slice());
    if checksum.0 != header[13] {
        return None;
    }
    Tables::new(Arc::new(words), train, held_out)
}

/// The words of a mapped cache file, behind its header.
struct MappedWords(Mmap);

impl Words for MappedWords {
    fn as_slice(&self) -> &[u32] {
        // SAFETY: every bit pattern is a valid `u32`. The map begins on a page and the header is a multiple of four
        // bytes, so nothing is left over in front.
        let (before, words, _) = unsafe { self.0[HEADER_BYTES..].align_to::<u32>() };
        debug_assert!(before.is_empty());
        words
    }
}

/// A fast sum that damage does not survive; no protection against ill will, which needs none here.
struct Checksum(u64);

impl Checksum {
    fn new(header: &[u64]) -> Self {
        let mut checksum = Self(0);
        header.iter().for_each(|word| checksum.mix(*word));
        checksum
    }

    fn add(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.mix(u64::from(*word)));
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::{RowKind, TokenRow};
    use super::*;

    fn table(rows: &[&[u32]]) -> TableBuilder {
        let mut builder = TableBuilder::default();
        for row in rows {
            builder.push(Some(TokenRow {
                ids: row.to_vec(),
                labels: row.iter().map(|id| id + 1).collect(),
                kind: RowKind::Running,
            }));
        }
        builder.push(None);
        builder
    }

    #[test]
    fn what_was_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TokenCache {
            folder: &folder.path().join("new"),
        };
        let (train, held_out) = (table(&[&[1, 2, 3], &[4]]), table(&[&[5, 6]]));
        assert!(cache.read(&[7; 32]).is_none());
        cache.write(&[7; 32], &train, &held_out).unwrap();
        let tables = cache.read(&[7; 32]).unwrap();
        assert_eq!(tables.train.ids(0..4), [1, 2, 3, 4]);
        assert_eq!(tables.train.labels(3..4), [5]);
        assert_eq!(tables.held_out.ids(0..2), [5, 6]);
        assert_eq!(tables.held_out.extent(), held_out.extent());
        assert_eq!(std::fs::read_dir(cache.folder).unwrap().count(), 1);
    }

    #[test]
    fn any_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TokenCache { folder: folder.path() };
        let key = [9; 32];
        cache.write(&key, &table(&[&[1, 2, 3]]), &table(&[&[5]])).unwrap();
        let path = cache.path(&key);
        let whole = std::fs::read(&path).unwrap();
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 0x40;
            std::fs::write(&path, damaged).unwrap();
            assert!(cache.read(&key).is_none(), "byte {position}");
        }
        for length in [0, 1, HEADER_BYTES, whole.len() - 4] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(cache.read(&key).is_none(), "length {length}");
        }
        std::fs::write(&path, whole).unwrap();
        assert!(cache.read(&key).is_some());
        let mut other = key;
        other[31] ^= 1;
        // Another key whose file has the same name: the name holds half the key only.
        assert!(cache.read(&other).is_none());
    }
}
