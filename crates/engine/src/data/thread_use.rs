//! Use that a thread has made of the machine, as Linux counts it by thread: its clock of processor time, and the reads of getrusage(2).
//!
//! The times of getrusage(2) go on when the scheduler looks at the thread, every few milliseconds, and miss what is shorter.

/// Use of a thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadUse {
    /// Seconds of processors.
    pub processor_s: f64,
    /// Bytes that a disk had to read for it: what lay in the page cache is not among them.
    pub read_bytes: u64,
}

/// Bytes of a block, as the kernel counts reads.
#[cfg(target_os = "linux")]
const BLOCK: u64 = 512;

impl ThreadUse {
    /// Use of the calling thread so far; `None` where the system does not tell it.
    #[cfg(target_os = "linux")]
    pub fn now() -> Option<Self> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time outlives the call.
        let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the record outlives the call, which fills it in.
        let read = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        if told != 0 || read != 0 {
            return None;
        }
        // SAFETY: a record of zeros is one, and the call has filled it in.
        let usage = unsafe { usage.assume_init() };
        Some(Self {
            processor_s: time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
            read_bytes: BLOCK * u64::try_from(usage.ru_inblock).unwrap_or(0),
        })
    }

    /// Use of the calling thread so far; not told here.
    #[cfg(not(target_os = "linux"))]
    pub fn now() -> Option<Self> {
        None
    }

    /// Use since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            processor_s: self.processor_s - earlier.processor_s,
            read_bytes: self.read_bytes - earlier.read_bytes,
        }
    }

    /// Use of two stretches of time together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            processor_s: self.processor_s + other.processor_s,
            read_bytes: self.read_bytes + other.read_bytes,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;

    /// Bytes that the kernel says elsewhere that a disk read for this thread.
    fn read_by_io() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
    }

    #[test]
    fn a_thread_that_computes_uses_its_processor_and_one_that_sleeps_does_not() {
        let began = ThreadUse::now().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let slept = ThreadUse::now().unwrap().since(&began);
        assert!(slept.processor_s < 0.04, "{slept:?}");
        let started = Instant::now();
        // A busy machine may not let the thread run for a while.
        while ThreadUse::now().unwrap().since(&began).processor_s < 0.05 {
            assert!(started.elapsed().as_secs() < 60, "{:?}", ThreadUse::now());
        }
    }

    #[test]
    fn bytes_that_a_disk_reads_are_those_that_the_kernel_counts() {
        let Some(before) = read_by_io() else { return };
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &vec![1; 1 << 22]).unwrap();
        file.sync_all().unwrap();
        // SAFETY: the file is open; the call only gives advice.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        std::io::Seek::rewind(&mut file).unwrap();
        let began = ThreadUse::now().unwrap();
        let counted = read_by_io().unwrap();
        assert!(counted >= before);
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        let read = ThreadUse::now().unwrap().since(&began).read_bytes;
        // No byte where the file lies in memory, as some systems have temporary ones.
        assert_eq!(read, read_by_io().unwrap() - counted);
    }
}
