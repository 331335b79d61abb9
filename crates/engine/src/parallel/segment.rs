//! Memory that the processes of one training share.
//!
//! It is a file without a name (`memfd_create`): the processes that are started with its descriptor open have it, and the
//! kernel frees it with the last of them, however they end. So nothing is ever left in `/dev/shm`.
//!
//! | part | bytes | what |
//! |---|---|---|
//! | head | 64 | magic number, ranks, and 1 + the rank that is gone (0: all are there) |
//! | arrivals | 64 per rank | how many barriers the rank has reached; a cache line each, since all watch them |
//! | slots | [`SLOT_BYTES`] per rank | what the rank gives to the others |

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use memmap2::{MmapOptions, MmapRaw};

use super::CollectiveError;

/// Bytes that each rank can give at once. More is given in turns.
pub(super) const SLOT_BYTES: usize = 1 << 20;
/// Bytes of a cache line, or of two where they are fetched in pairs.
const LINE: usize = 64;
/// Most ranks: those of one node.
pub(super) const MOST_RANKS: usize = 64;
/// `peftdp01` in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"peftdp01");

/// Words of the head.
const GONE: usize = 2;

/// The shared memory of one training.
#[derive(Debug)]
pub struct Segment {
    file: File,
    memory: MmapRaw,
    ranks: usize,
}

impl Segment {
    /// Makes the memory of a training of `ranks` ranks.
    ///
    /// # Errors
    /// Too many ranks; a system without such files; no memory.
    pub fn create(ranks: usize) -> Result<Self, CollectiveError> {
        check(0, ranks)?;
        let failed = |source| CollectiveError::Memory { ranks, source };
        let file = nameless_file().map_err(failed)?;
        file.set_len(bytes(ranks) as u64).map_err(failed)?;
        let segment = Self::map(file, ranks)?;
        segment.word(0).store(MAGIC, Relaxed);
        segment.word(1).store(ranks as u64, Relaxed);
        Ok(segment)
    }

    /// The memory behind a descriptor that this process was started with.
    ///
    /// # Errors
    /// A descriptor of something else, or of a training with another number of ranks.
    pub fn inherited(descriptor: RawFd, ranks: usize) -> Result<Self, CollectiveError> {
        check(0, ranks)?;
        let failed = |source| CollectiveError::Memory { ranks, source };
        // SAFETY: asks about a descriptor, whatever it is.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is open, and this process got it to own it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        if file.metadata().map_err(failed)?.len() != bytes(ranks) as u64 {
            return Err(CollectiveError::Foreign);
        }
        let segment = Self::map(file, ranks)?;
        if segment.word(0).load(Relaxed) != MAGIC || segment.word(1).load(Relaxed) != ranks as u64 {
            return Err(CollectiveError::Foreign);
        }
        Ok(segment)
    }

    /// View of the same memory for another rank in this process.
    ///
    /// # Errors
    /// No more descriptors or memory.
    pub fn share(&self) -> Result<Self, CollectiveError> {
        let failed = |source| CollectiveError::Memory {
            ranks: self.ranks,
            source,
        };
        Self::map(self.file.try_clone().map_err(failed)?, self.ranks)
    }

    /// How many ranks share it.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The descriptor, which is closed in programs that this process starts unless they are told to keep it.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Tells all ranks that `rank` is gone; the first that was told of stays.
    pub fn tell_gone(&self, rank: usize) {
        let _ = self.word(GONE).compare_exchange(0, rank as u64 + 1, AcqRel, Acquire);
    }

    /// The rank that is gone, if any is.
    pub fn gone(&self) -> Option<usize> {
        let told = self.word(GONE).load(Acquire).checked_sub(1)?;
        usize::try_from(told).ok()
    }

    /// Barriers that `rank` has reached.
    pub(super) fn arrivals(&self, rank: usize) -> &AtomicU64 {
        self.word((1 + rank) * LINE / size_of::<u64>())
    }

    /// The slot of `rank`: [`SLOT_BYTES`] bytes at a multiple of [`LINE`].
    pub(super) fn slot(&self, rank: usize) -> *mut u8 {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: `bytes` has room for a slot of each rank.
        unsafe { self.memory.as_mut_ptr().add(slots_at(self.ranks) + rank * SLOT_BYTES) }
    }

    fn map(file: File, ranks: usize) -> Result<Self, CollectiveError> {
        let memory = MmapOptions::new().len(bytes(ranks)).map_raw(&file);
        let memory = memory.map_err(|source| CollectiveError::Memory { ranks, source })?;
        Ok(Self { file, memory, ranks })
    }

    /// Word `index` of head and arrivals.
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index * size_of::<u64>() < slots_at(self.ranks), "word {index}");
        // SAFETY: it lies in the mapped part before the slots, at a multiple of eight bytes of a page, lives as long as the
        // mapping, and is reached only as an atomic, by every process.
        unsafe { &*self.memory.as_mut_ptr().cast::<AtomicU64>().add(index) }
    }
}

/// Refuses numbers of ranks that no node has, and ranks outside.
pub(super) fn check(rank: usize, ranks: usize) -> Result<(), CollectiveError> {
    match (1..=MOST_RANKS).contains(&ranks) && rank < ranks {
        true => Ok(()),
        false => Err(CollectiveError::Ranks {
            rank,
            ranks,
            most: MOST_RANKS,
        }),
    }
}

fn slots_at(ranks: usize) -> usize {
    (1 + ranks) * LINE
}

fn bytes(ranks: usize) -> usize {
    slots_at(ranks) + ranks * SLOT_BYTES
}

#[cfg(target_os = "linux")]
fn nameless_file() -> io::Result<File> {
    // SAFETY: the name is a string that ends in zero; the descriptor that comes back is ours alone.
    let descriptor = unsafe { libc::memfd_create(c"peft-tune ranks".as_ptr(), libc::MFD_CLOEXEC) };
    match descriptor {
        0.. => {
            // SAFETY: as above.
            Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn nameless_file() -> io::Result<File> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "several devices in one trial need Linux; set `devices: 1`",
    ))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_is_gone_is_kept() {
        let segment = Segment::create(3).unwrap();
        let other = segment.share().unwrap();
        assert_eq!(segment.gone(), None);
        other.tell_gone(2);
        other.tell_gone(1);
        assert_eq!(segment.gone(), Some(2));
    }

    #[test]
    fn slots_do_not_touch_each_other_or_the_head() {
        let segment = Segment::create(2).unwrap();
        let start = segment.memory.as_mut_ptr() as usize;
        let (first, second) = (segment.slot(0) as usize - start, segment.slot(1) as usize - start);
        assert_eq!((first, second), (3 * LINE, 3 * LINE + SLOT_BYTES));
        assert_eq!(second + SLOT_BYTES, bytes(2));
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        assert!(matches!(Segment::create(0), Err(CollectiveError::Ranks { .. })));
        assert!(matches!(Segment::create(65), Err(CollectiveError::Ranks { .. })));
        let missing = Segment::inherited(9999, 2).unwrap_err().to_string();
        assert!(missing.contains("2 ranks"), "{missing}");
        let other = nameless_file().unwrap();
        let descriptor = std::os::fd::IntoRawFd::into_raw_fd(other);
        assert!(matches!(
            Segment::inherited(descriptor, 2),
            Err(CollectiveError::Foreign)
        ));
    }
}
