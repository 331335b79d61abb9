//! The host's counters: `/proc/pressure/cpu`, `/proc/stat`, the processors' clocks, and the processor time of this process.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Counters, MachineCounters};

/// Ticks of `/proc` in a second, on every Linux that programs meet.
pub const TICKS_PER_S: f64 = 100.0;

/// Reads what Linux shows; other systems count only the process's own time, or nothing.
#[derive(Debug)]
pub struct HostCounters {
    root: PathBuf,
    /// Processors that this process may use; empty for all.
    cpus: Vec<usize>,
    started: Instant,
}

impl Default for HostCounters {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl HostCounters {
    /// The counters below another root.
    fn at(root: &Path) -> Self {
        let status = std::fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self {
            root: root.to_owned(),
            cpus: allowed.map(cpu_list).unwrap_or_default(),
            started: Instant::now(),
        }
    }

    /// Processors that this process may use.
    pub fn cores(&self) -> usize {
        match self.cpus.len() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            count => count,
        }
    }

    /// Seconds of work and of what the hypervisor took, on the processors that may be used.
    fn busy_and_stolen_s(&self) -> Option<(f64, f64)> {
        let text = std::fs::read_to_string(self.root.join("proc/stat")).ok()?;
        let is_used = |name: &str| {
            let number = name.strip_prefix("cpu").and_then(|number| number.parse().ok());
            number.is_some_and(|number| self.cpus.is_empty() || self.cpus.contains(&number))
        };
        let mut sums = None;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next().is_none_or(|name| !is_used(name)) {
                continue;
            }
            let ticks: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
            let at = |index: usize| ticks.get(index).copied().unwrap_or(0.0);
            let (busy, stolen) = sums.get_or_insert((0.0, 0.0));
            // user, nice, system, (idle, waiting for devices,) interrupts, soft interrupts, steal
            *busy += (at(0) + at(1) + at(2) + at(5) + at(6)) / TICKS_PER_S;
            *stolen += at(7) / TICKS_PER_S;
        }
        sums
    }

    fn clock_mhz(&self) -> Option<f64> {
        let clock = |cpu: usize| -> Option<f64> {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq");
            let kilohertz: f64 = std::fs::read_to_string(self.root.join(path))
                .ok()?
                .trim()
                .parse()
                .ok()?;
            Some(kilohertz / 1e3)
        };
        let clocks: Vec<f64> = (0..self.cores())
            .map(|index| self.cpus.get(index).copied().unwrap_or(index))
            .filter_map(clock)
            .collect();
        (!clocks.is_empty()).then(|| clocks.iter().sum::<f64>() / clocks.len() as f64)
    }
}

impl MachineCounters for HostCounters {
    fn read(&mut self) -> Counters {
        let (busy_s, stolen_s) = self.busy_and_stolen_s().unzip();
        Counters {
            at_s: self.started.elapsed().as_secs_f64(),
            own_s: processor_s(),
            waiting_s: pressure_s(&self.root, "cpu"),
            busy_s,
            stolen_s,
            clock_mhz: self.clock_mhz(),
        }
    }
}

/// Seconds in which some task waited for `what`, such as `cpu` or `io`, by the files of Linux below `root`.
pub fn pressure_s(root: &Path, what: &str) -> Option<f64> {
    let text = std::fs::read_to_string(root.join("proc/pressure").join(what)).ok()?;
    let some = text.lines().find(|line| line.starts_with("some"))?;
    let total: u64 = some.split("total=").nth(1)?.trim().parse().ok()?;
    Some(total as f64 / 1e6)
}

/// Processor time of all threads of this process, in seconds.
#[cfg(unix)]
pub fn processor_s() -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time outlives the call.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    (read == 0).then(|| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Processor time of all threads of this process, in seconds; not known here.
#[cfg(not(unix))]
pub fn processor_s() -> Option<f64> {
    None
}

/// `0-2,5` as numbers; what is no number is passed over.
fn cpu_list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0,2-3\n");
        write(
            "proc/pressure/cpu",
            "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=0\n",
        );
        write(
            "proc/stat",
            "cpu  999 0 0 0\ncpu0 100 20 30 5000 70 4 6 50 0 0\ncpu1 900 0 0 0 0 0 0 0\ncpu2 0 0 40 0 0 0 0 0\n",
        );
        write("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "2400000\n");
        let mut counters = HostCounters::at(folder.path());
        assert_eq!(counters.cores(), 3);
        let read = counters.read();
        assert_eq!((read.waiting_s, read.clock_mhz), (Some(2.5), Some(2400.0)));
        assert!((read.busy_s.unwrap() - 2.0).abs() < 1e-9 && read.stolen_s == Some(0.5));
    }

    #[test]
    fn what_is_not_there_is_absent() {
        let folder = tempfile::tempdir().unwrap();
        let mut counters = HostCounters::at(folder.path());
        let read = counters.read();
        assert_eq!((read.waiting_s, read.busy_s, read.clock_mhz), (None, None, None));
        assert!(counters.cores() > 0);
    }

    #[cfg(unix)]
    #[test]
    fn work_of_this_process_is_counted() {
        let mut counters = HostCounters::default();
        let first = counters.read().own_s.unwrap();
        let mut sum = 0u64;
        while counters.read().own_s.unwrap() < first + 0.01 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
