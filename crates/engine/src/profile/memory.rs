//! Exact host memory: an allocator that counts.
//!
//! Every allocation of the process passes through [`CountingAllocator`], which keeps the bytes in use and their highest
//! value since the last reset. On the CPU this is the trial's peak memory, exact to the byte and the same in every run,
//! unlike the resident set size, which depends on what the system's allocator gives back. With a limit set, a request
//! above it ends the process at once with [`OUT_OF_MEMORY_EXIT`]: an allocator cannot return an error to code that
//! expects none, and a trial process is cheap to replace.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Exit code of a process that asked for more than its memory limit.
pub const OUT_OF_MEMORY_EXIT: i32 = 86;

static IN_USE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// The system's allocator, counted.
pub struct CountingAllocator(());

impl CountingAllocator {
    pub const fn new() -> Self {
        Self(())
    }
}

impl Default for CountingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds to the count; ends the process where the limit is passed.
fn take(bytes: u64) {
    let in_use = IN_USE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(in_use, Relaxed);
    let limit = LIMIT.load(Relaxed);
    if in_use > limit {
        end_out_of_memory(in_use - bytes, bytes, limit);
    }
}

/// Pointer that the system's allocator answered. Where it has nothing more, the process ends; where it has a limit,
/// that limit is meant: the system's own for the process is set a little above it.
fn given(pointer: *mut u8, size: usize) -> *mut u8 {
    if size >= HUGE && !pointer.is_null() {
        ask_for_huge_pages(pointer, size);
    }
    if pointer.is_null() {
        let in_use = IN_USE.load(Relaxed).saturating_sub(size as u64);
        match LIMIT.load(Relaxed) {
            u64::MAX => end_without_memory(in_use, size as u64),
            limit => end_out_of_memory(in_use, size as u64, limit),
        }
    }
    pointer
}

fn give_back(bytes: u64) {
    IN_USE.fetch_sub(bytes, Relaxed);
}

/// Reports on standard output, as one JSON line that a coordinator reads, and ends the process. It must not allocate.
#[cold]
fn end_out_of_memory(in_use: u64, requested: u64, limit: u64) -> ! {
    // The leading line break ends a line that another thread may have begun.
    end_saying(
        libc::STDOUT_FILENO,
        OUT_OF_MEMORY_EXIT,
        format_args!(
            "\n{{\"event\":\"out_of_memory\",\"in_use_bytes\":{in_use},\"requested_bytes\":{requested},\"limit_bytes\":{limit}}}\n"
        ),
    )
}

/// Says on standard error that the system has no more memory for this process, and ends it. It must not allocate.
#[cold]
fn end_without_memory(in_use: u64, requested: u64) -> ! {
    end_saying(
        libc::STDERR_FILENO,
        1,
        format_args!(
            "error: memory allocation of {requested} bytes failed, with {in_use} bytes in use: the system gives this process no more. \
             End other programs, or raise its limit (`ulimit -v`, a container's)\n"
        ),
    )
}

/// Writes a message to a file of this process and ends with an exit code, without allocating.
fn end_saying(file: i32, code: i32, message: std::fmt::Arguments<'_>) -> ! {
    use std::io::Write;
    LIMIT.store(u64::MAX, Relaxed);
    let mut line = [0u8; 256];
    let mut cursor = std::io::Cursor::new(&mut line[..]);
    let _ = cursor.write_fmt(message);
    let length = cursor.position() as usize;
    // SAFETY: the buffer outlives the call; `_exit` ends the process without running any code of ours.
    unsafe {
        libc::write(file, line.as_ptr().cast(), length);
        libc::_exit(code)
    }
}

/// Bytes from which a block begins at a whole cache line. Vector instructions of 64 bytes touch two lines at any other
/// place, and the rows of a tile of AMX take twice as long to load.
const LARGE: usize = 4096;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Bytes from which a block is worth pages of 2 MiB: a product walks through more memory than the processor knows small
/// pages of.
const HUGE: usize = 1 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages under the block, its first and last one included. Where the system has none, nothing changes.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(block: *mut u8, size: usize) {
    let moved = block.addr() % HUGE_PAGE;
    let bytes = (moved + size).next_multiple_of(HUGE_PAGE);
    // SAFETY: the advice changes no memory's content, whoever's it is.
    unsafe { libc::madvise(block.wrapping_sub(moved).cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: *mut u8, _: usize) {}

/// The layout of a large block with room to begin at a cache line; `None` for blocks that stay as they are.
// Design note: the system's own aligned blocks are not used, since glibc reuses freed ones badly: a training step's
// resident set was a sixth larger with them.
fn roomy(layout: Layout) -> Option<Layout> {
    if layout.size() < LARGE || layout.align() > align_of::<usize>() {
        return None;
    }
    Layout::from_size_align(layout.size() + CACHE_LINE, align_of::<[usize; 2]>()).ok()
}

/// Moves the start of a roomy block to the next cache line and keeps the way back in front of it.
///
/// # Safety
/// `block` is null or has [`CACHE_LINE`] bytes more than its user asked for.
unsafe fn to_line(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        return block;
    }
    let moved = CACHE_LINE - block.addr() % CACHE_LINE;
    // SAFETY: blocks begin at whole words, so that at least a word lies in front of the next line.
    unsafe {
        let place = block.add(moved);
        place.cast::<usize>().sub(1).write(moved);
        place
    }
}

/// The start of the block that [`to_line`] moved.
///
/// # Safety
/// `place` came from [`to_line`] and is not null.
unsafe fn from_line(place: *mut u8) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { place.sub(place.cast::<usize>().sub(1).read()) }
}

// SAFETY: every block comes from the system's allocator; whether it was moved to a cache line depends on its layout alone.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size() as u64);
        // SAFETY: the caller keeps GlobalAlloc's contract.
        let block = unsafe {
            match roomy(layout) {
                Some(roomy) => to_line(System.alloc(roomy)),
                None => System.alloc(layout),
            }
        };
        given(block, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size() as u64);
        // SAFETY: as above.
        let block = unsafe {
            match roomy(layout) {
                Some(roomy) => to_line(System.alloc_zeroed(roomy)),
                None => System.alloc_zeroed(layout),
            }
        };
        given(block, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give_back(layout.size() as u64);
        // SAFETY: as above.
        unsafe {
            match roomy(layout) {
                Some(roomy) => System.dealloc(from_line(pointer), roomy),
                None => System.dealloc(pointer, layout),
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.size() >= LARGE || new_size >= LARGE {
            // SAFETY: as above; the new layout has the alignment of the old one, and the copy fits both blocks.
            return unsafe {
                let moved = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !moved.is_null() {
                    moved.copy_from_nonoverlapping(pointer, layout.size().min(new_size));
                    self.dealloc(pointer, layout);
                }
                moved
            };
        }
        // Growing may copy, and then both blocks exist; counting the new one first keeps the peak an upper bound.
        take(new_size as u64);
        // SAFETY: as above.
        let moved = given(unsafe { System.realloc(pointer, layout, new_size) }, new_size);
        give_back(layout.size() as u64);
        moved
    }
}

/// The counters of this process.
pub struct HostMemory;

impl HostMemory {
    /// Bytes allocated now.
    pub fn in_use_bytes() -> u64 {
        IN_USE.load(Relaxed)
    }

    /// Highest bytes allocated since the last [`HostMemory::reset_peak`].
    pub fn peak_bytes() -> u64 {
        PEAK.load(Relaxed)
    }

    /// Starts a new peak from what is in use now.
    pub fn reset_peak() {
        PEAK.store(IN_USE.load(Relaxed), Relaxed);
    }

    /// The highest bytes since the last new peak, and a new peak from what is in use now.
    pub fn take_peak() -> u64 {
        PEAK.swap(IN_USE.load(Relaxed), Relaxed)
    }

    /// Makes the system's allocator keep freed memory for the next request instead of giving it back. A training step
    /// frees and asks for the same large blocks again and again, and each return to the kernel costs a page fault for
    /// every 4 KiB when they are touched again. Does nothing where the allocator has no such switch.
    pub fn keep_freed() {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: `mallopt` only sets parameters of the allocator; values that it does not know are refused.
        unsafe {
            // Large blocks come from the heap rather than from a mapping each, and the heap's end is never returned.
            libc::mallopt(libc::M_MMAP_MAX, 0);
            libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
            libc::mallopt(libc::M_TOP_PAD, 64 << 20);
        }
    }

    /// Sets the bytes above which the process ends with [`OUT_OF_MEMORY_EXIT`]; `None` lifts the limit.
    pub fn set_limit(limit_bytes: Option<u64>) {
        LIMIT.store(limit_bytes.unwrap_or(u64::MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_begin_at_cache_lines_and_keep_their_values_as_they_grow() {
        let mut values: Vec<u16> = Vec::new();
        for value in 0..20_000 {
            values.push(value);
            assert!(values.capacity() * 2 < LARGE || values.as_ptr().addr().is_multiple_of(CACHE_LINE));
        }
        values.truncate(100);
        values.shrink_to_fit();
        assert!(values.iter().copied().eq(0..100));
        let zeros = vec![0u8; LARGE];
        assert!(zeros.as_ptr().addr().is_multiple_of(CACHE_LINE));
        assert!(zeros.iter().all(|value| *value == 0));
    }

    #[test]
    fn a_large_block_shows_in_the_peak() {
        HostMemory::reset_peak();
        let before = HostMemory::in_use_bytes();
        let block = vec![1u8; 64 << 20];
        assert!(HostMemory::peak_bytes() >= before + (64 << 20));
        drop(block);
        assert!(HostMemory::in_use_bytes() < before + (64 << 20));
    }
}
