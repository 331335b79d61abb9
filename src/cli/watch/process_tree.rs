//! Processes of a run, as Linux shows them below `/proc`: the command, and all that it has started.
//!
//! A process that the command started stays the run's when its parent ends. What a process used counts on when it has ended.
//!
//! | file | field | meaning |
//! |---|---|---|
//! | `stat` | 3, 4 | state, parent |
//! | | 12 | pages that were read from a disk |
//! | | 14, 15 | ticks in user mode and in the kernel |
//! | | 22 | tick at which it began |
//! | | 42 | ticks in which it waited for a block of a disk, where the kernel counts them |
//! | `status` | `VmRSS`, `VmSwap` | memory, and what of it is in the swap |
//! | `io` | `read_bytes`, `write_bytes` | bytes that a disk had to read and write |
//! | `smaps_rollup` | `Pss` | memory with its part of what several processes share |
//! | `sys/kernel/task_delayacct` | | 1 where the kernel counts field 42, which it does not by default |
//!
//! Source: proc(5).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use peft_tune_engine::profile::disturbance::TICKS_PER_S;
use peft_tune_engine::profile::field_bytes;

/// Time between two looks at what processes share: the kernel walks all their pages for it.
const SHARES_EVERY: Duration = Duration::from_secs(30);

/// What processes have used since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    pub cpu_s: f64,
    /// Time in which they waited for blocks of a disk, where the kernel counts it.
    pub blocked_s: Option<f64>,
    pub major_faults: u64,
    /// Bytes that a disk had to read and to write, where the kernel tells them.
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
}

impl Used {
    fn add(&mut self, other: &Self) {
        self.cpu_s += other.cpu_s;
        self.blocked_s = sum(self.blocked_s, other.blocked_s);
        self.major_faults += other.major_faults;
        self.read_bytes = sum(self.read_bytes, other.read_bytes);
        self.written_bytes = sum(self.written_bytes, other.written_bytes);
    }
}

/// Sum of what is known.
fn sum<T: std::ops::Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}

/// All processes of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TreeSample {
    pub processes: BTreeSet<u32>,
    /// Memory, with what they share counted once as far as that is known.
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    /// Whether the main thread of the process that has computed most waits for something other than a processor.
    pub is_asleep: bool,
    pub used: Used,
}

/// Watches the processes of a run.
#[derive(Debug)]
pub(super) struct ProcessTree {
    proc: PathBuf,
    /// Whether the kernel counts the time in which processes wait for a disk.
    counts_blocks: bool,
    /// The command's process, until it was seen.
    root: Option<u32>,
    members: BTreeMap<u32, Member>,
    /// Processes that are none of the run's.
    others: BTreeSet<u32>,
    /// Use of members that have ended.
    ended: Used,
    /// Part of the resident sets that is left where shared pages count once, and when it was looked up.
    share: (f64, Option<Instant>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    began: u64,
    used: Used,
}

/// One process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stat {
    parent: u32,
    began: u64,
    /// Whether its main thread waits for something other than a processor.
    is_asleep: bool,
    used: Used,
}

impl ProcessTree {
    /// Watches a process and its descendants.
    pub(super) fn of(root: u32) -> Self {
        Self::at(Path::new("/proc"), root)
    }

    fn at(proc: &Path, root: u32) -> Self {
        let counts_blocks = std::fs::read_to_string(proc.join("sys/kernel/task_delayacct"));
        Self {
            counts_blocks: counts_blocks.is_ok_and(|text| text.trim() == "1"),
            proc: proc.to_owned(),
            root: Some(root),
            members: BTreeMap::new(),
            others: BTreeSet::new(),
            ended: Used::default(),
            share: (1.0, None),
        }
    }

    /// One look; `None` where no process of the run is left, or where the system does not show them.
    pub(super) fn sample(&mut self) -> Option<TreeSample> {
        self.find_new();
        let mut sample = TreeSample::default();
        let (mut gone, mut most_s) = (Vec::new(), -1.0);
        for (process, member) in &mut self.members {
            let folder = self.proc.join(process.to_string());
            let now = stat_of(&folder, self.counts_blocks).filter(|now| now.began == member.began);
            let Some(now) = now else {
                gone.push(*process);
                continue;
            };
            member.used = now.used;
            if now.used.cpu_s > most_s {
                (most_s, sample.is_asleep) = (now.used.cpu_s, now.is_asleep);
            }
            let (memory, swap) = memory_of(&folder);
            sample.memory_bytes += memory;
            sample.swap_bytes += swap;
            sample.processes.insert(*process);
        }
        for process in gone {
            let member = self.members.remove(&process).unwrap_or_default();
            self.ended.add(&member.used);
        }
        sample.used = self.ended;
        for member in self.members.values() {
            sample.used.add(&member.used);
        }
        self.count_shared_once(&mut sample);
        (!sample.processes.is_empty()).then_some(sample)
    }

    /// Takes in processes that began since the last look.
    fn find_new(&mut self) {
        let entries = std::fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let all: BTreeSet<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        self.others.retain(|process| all.contains(process));
        let known = |process: &u32| self.members.contains_key(process) || self.others.contains(process);
        let new = all.iter().filter(|process| !known(process)).copied();
        let mut new: BTreeMap<u32, Stat> = new
            .filter_map(|process| {
                let folder = self.proc.join(process.to_string());
                Some((process, stat_of(&folder, self.counts_blocks)?))
            })
            .collect();
        loop {
            let is_ours = |(process, stat): &(&u32, &Stat)| {
                Some(**process) == self.root || self.members.contains_key(&stat.parent)
            };
            let ours: Vec<u32> = new.iter().filter(is_ours).map(|(process, _)| *process).collect();
            if ours.is_empty() {
                break;
            }
            for process in ours {
                // Whoever has its number later is another one.
                self.root.take_if(|root| *root == process);
                if let Some(Stat { began, used, .. }) = new.remove(&process) {
                    self.members.insert(process, Member { began, used });
                }
            }
        }
        self.others.extend(new.into_keys());
    }

    /// Counts pages that several processes share once, as far as the kernel says.
    fn count_shared_once(&mut self, sample: &mut TreeSample) {
        if sample.processes.len() < 2 {
            return;
        }
        let (share, looked) = &mut self.share;
        if looked.is_none_or(|looked| looked.elapsed() >= SHARES_EVERY) {
            let parts = sample
                .processes
                .iter()
                .map(|process| proportional_of(&self.proc.join(process.to_string())));
            let sum: Option<u64> = parts.sum();
            let found = sum.map(|sum| sum as f64 / sample.memory_bytes.max(1) as f64);
            *share = found.filter(|share| (0.0..=1.0).contains(share)).unwrap_or(1.0);
            *looked = Some(Instant::now());
        }
        sample.memory_bytes = (sample.memory_bytes as f64 * *share) as u64;
    }
}

/// What `stat` and `io` of a process say; `None` where it is gone.
fn stat_of(folder: &Path, counts_blocks: bool) -> Option<Stat> {
    // A program may have any bytes for its name.
    let bytes = std::fs::read(folder.join("stat")).ok()?;
    let mut stat = parsed_stat(&String::from_utf8_lossy(&bytes))?;
    stat.used.blocked_s = stat.used.blocked_s.filter(|_| counts_blocks);
    let io = std::fs::read_to_string(folder.join("io")).unwrap_or_default();
    let count = |key: &str| io.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    stat.used.read_bytes = count("read_bytes:");
    stat.used.written_bytes = count("write_bytes:");
    Some(stat)
}

fn parsed_stat(text: &str) -> Option<Stat> {
    // The name before it may hold blanks and brackets.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = |field: usize| number(field).unwrap_or(0) as f64 / TICKS_PER_S;
    Some(Stat {
        parent: u32::try_from(number(4)?).ok()?,
        began: number(22)?,
        is_asleep: !fields.first()?.starts_with('R'),
        used: Used {
            cpu_s: ticks(14) + ticks(15),
            blocked_s: Some(ticks(42)),
            major_faults: number(12).unwrap_or(0),
            ..Used::default()
        },
    })
}

/// Resident bytes, and bytes in the swap.
fn memory_of(folder: &Path) -> (u64, u64) {
    let bytes = std::fs::read(folder.join("status")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let of = |field: &str| field_bytes(&text, field).unwrap_or(0);
    (of("VmRSS:"), of("VmSwap:"))
}

/// Bytes with the process's part of shared pages.
fn proportional_of(folder: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(folder.join("smaps_rollup")).ok()?;
    Some(field_bytes(&text, "Pss:").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a process as `/proc` has it.
    fn process(proc: &Path, number: u32, parent: u32, ticks: u64, kib: u64) {
        let folder = proc.join(number.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        // Fields 5 to 11, 13, 16 to 21 and 23 to 41 say nothing here.
        let stat = format!(
            "{number} (a ) b) S {parent} 0 0 0 0 0 0 0 3 0 {ticks} 50 0 0 0 0 0 0 {} {} 200 0\n",
            number * 10,
            vec!["0"; 19].join(" ")
        );
        std::fs::write(folder.join("stat"), stat).unwrap();
        std::fs::write(
            folder.join("status"),
            format!("Name:\tx\nVmRSS:\t{kib} kB\nVmSwap:\t4 kB\n"),
        )
        .unwrap();
        std::fs::write(folder.join("io"), "rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n").unwrap();
    }

    #[test]
    fn descendants_are_found_and_count_on_when_they_have_ended() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, 1, 100, 1000);
        process(proc.path(), 8, 1, 999, 5000);
        process(proc.path(), 9, 7, 100, 500);
        process(proc.path(), 10, 9, 100, 100);
        std::fs::create_dir_all(proc.path().join("sys/kernel")).unwrap();
        std::fs::write(proc.path().join("sys/kernel/task_delayacct"), "1\n").unwrap();
        let mut tree = ProcessTree::at(proc.path(), 7);
        let sample = tree.sample().unwrap();
        assert_eq!(sample.processes, BTreeSet::from([7, 9, 10]));
        assert_eq!(sample.memory_bytes, 1600 * 1024);
        assert_eq!(sample.swap_bytes, 3 * 4096);
        assert!((sample.used.cpu_s - 4.5).abs() < 1e-9, "{sample:?}");
        assert!((sample.used.blocked_s.unwrap() - 6.0).abs() < 1e-9, "{sample:?}");
        assert_eq!((sample.used.major_faults, sample.used.read_bytes), (9, Some(3 * 4096)));
        assert!(sample.is_asleep);
        // One has ended, its child has another parent now, and a new one began.
        std::fs::remove_dir_all(proc.path().join("9")).unwrap();
        process(proc.path(), 10, 1, 200, 100);
        process(proc.path(), 11, 10, 0, 10);
        let sample = tree.sample().unwrap();
        assert_eq!(sample.processes, BTreeSet::from([7, 10, 11]));
        assert!((sample.used.cpu_s - (1.5 + 1.5 + 2.5 + 0.5)).abs() < 1e-9, "{sample:?}");
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_process() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, 1, 100, 1000);
        let folder = proc.path().join("7");
        let stat = std::fs::read_to_string(folder.join("stat")).unwrap();
        let (number, fields) = stat.split_once("(a ) b)").unwrap();
        let stat = [number.as_bytes(), &b"(\xd0)"[..], fields.as_bytes()].concat();
        std::fs::write(folder.join("stat"), stat).unwrap();
        let status = std::fs::read(folder.join("status")).unwrap();
        std::fs::write(
            folder.join("status"),
            [&b"Name:\t\xd0\n"[..], status.as_slice()].concat(),
        )
        .unwrap();
        let sample = ProcessTree::at(proc.path(), 7).sample().unwrap();
        assert_eq!((sample.processes.len(), sample.memory_bytes), (1, 1000 * 1024));
        // The kernel does not say that it counts waits for a disk.
        assert_eq!(sample.used.blocked_s, None);
    }

    #[test]
    fn shared_pages_count_once_where_the_kernel_says_so() {
        let proc = tempfile::tempdir().unwrap();
        for (number, parent) in [(7, 1), (8, 7)] {
            process(proc.path(), number, parent, 0, 1000);
            std::fs::write(
                proc.path().join(format!("{number}/smaps_rollup")),
                "Rss: 1000 kB\nPss: 600 kB\n",
            )
            .unwrap();
        }
        let mut tree = ProcessTree::at(proc.path(), 7);
        assert_eq!(tree.sample().unwrap().memory_bytes, 1200 * 1024);
    }

    #[test]
    fn a_number_that_another_process_has_now_is_no_longer_the_runs() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, 1, 100, 1000);
        let mut tree = ProcessTree::at(proc.path(), 7);
        tree.sample().unwrap();
        let stat = std::fs::read_to_string(proc.path().join("7/stat")).unwrap();
        std::fs::write(proc.path().join("7/stat"), stat.replace(" 70 ", " 71 ")).unwrap();
        assert_eq!(tree.sample(), None);
        assert_eq!(ProcessTree::at(Path::new("/no/such/folder"), 7).sample(), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_seen() {
        let sample = ProcessTree::of(std::process::id()).sample().unwrap();
        assert!(sample.processes.contains(&std::process::id()) && sample.memory_bytes > 1 << 20);
    }
}
