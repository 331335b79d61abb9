//! Processes of a run, as Linux shows them below `/proc`: the command, and all that it has started.
//!
//! A process that the command started stays the run's when its parent ends. What a process used counts on when it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::paced::{Paced, SPARING};
use super::process_stat::{Stat, Used, stat_of, status_of};
use super::shared_pages::SharedPages;
use super::thread_turns::{Queued, Threads};

/// Part of the time between two looks from which a thread was ready to run all the while.
const AWAKE: f64 = 0.9;
/// Part of the processor time of the busiest process from which one computes: launchers and shells do not.
const COMPUTES: f64 = 0.1;

/// All processes of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TreeSample {
    /// Processes that have not ended.
    pub processes: BTreeSet<u32>,
    /// Memory, with what they share counted once as far as that is known.
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    /// Whether the process that has computed most waits for something other than a processor: its main thread does, and no other
    /// thread of it computes.
    pub is_asleep: bool,
    pub used: Used,
    /// Time that threads waited for processors, where the kernel counts it.
    pub queued: Option<Queued>,
    /// Processors that those which compute may run on; empty where none does, and where the system does not tell.
    pub processors: BTreeSet<usize>,
}

/// Watches the processes of a run.
#[derive(Debug)]
pub(super) struct ProcessTree {
    proc: PathBuf,
    /// Whether the kernel counts the time in which processes wait for a disk (`sys/kernel/task_delayacct`), as it does not by default.
    counts_blocks: bool,
    /// The command's process, until it was seen.
    root: Option<u32>,
    members: BTreeMap<u32, Member>,
    /// Processes that are none of the run's.
    others: BTreeSet<u32>,
    /// Use of members that have ended, and of processes that ended before they were seen.
    ended: Used,
    /// Processor time of members that were gone at the last look, and that nobody had waited for by then.
    owed_s: f64,
    shared: SharedPages,
    /// Looks at threads, and what they told so far.
    thread_looks: Paced,
    queued: Option<Queued>,
    /// Most processor time that a process had at a look.
    most_s: f64,
    /// Processes with a thread that was ready to run from the last look but one to the last.
    awake: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct Member {
    began: u64,
    used: Used,
    /// Processor time of children that it has waited for.
    reaped_s: f64,
    threads: Threads,
}

impl ProcessTree {
    /// Watches a process and its descendants.
    pub(super) fn of(root: u32) -> Self {
        Self {
            shared: SharedPages::new(Paced::new(SPARING)),
            thread_looks: Paced::new(SPARING),
            ..Self::at(Path::new("/proc"), root)
        }
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
            owed_s: 0.0,
            shared: SharedPages::new(Paced::new(0)),
            thread_looks: Paced::new(0),
            queued: None,
            most_s: 0.0,
            awake: BTreeSet::new(),
        }
    }

    /// One look; `None` where no process of the run is left, or where the system does not show them.
    pub(super) fn sample(&mut self) -> Option<TreeSample> {
        self.find_new();
        let now = self.look_at_members();
        self.look_at_threads(&now);
        let mut sample = TreeSample::default();
        let (mut resident, mut allowed) = (BTreeMap::new(), Vec::new());
        let mut most_s = -1.0;
        for (process, stat) in now {
            let status = status_of(&self.proc.join(process.to_string()));
            resident.insert(process, status.resident_bytes);
            sample.swap_bytes += status.swap_bytes;
            allowed.push((stat.used.cpu_s, status.processors));
            if stat.used.cpu_s > most_s {
                most_s = stat.used.cpu_s;
                sample.is_asleep = stat.is_asleep && !self.awake.contains(&process);
            }
            sample.processes.insert(process);
        }
        self.most_s = self.most_s.max(most_s);
        let computing = allowed
            .into_iter()
            .filter(|(cpu_s, _)| *cpu_s >= COMPUTES * self.most_s);
        sample.processors = computing.flat_map(|(_, processors)| processors).collect();
        sample.memory_bytes = self.shared.count_once(&self.proc, &resident);
        sample.queued = self.queued;
        sample.used = self.ended;
        for member in self.members.values() {
            sample.used.add(&member.used);
        }
        (!sample.processes.is_empty()).then_some(sample)
    }

    /// Looks at the members, and tells those that have not ended.
    fn look_at_members(&mut self) -> BTreeMap<u32, Stat> {
        let (mut left, mut gone) = (BTreeMap::new(), Vec::new());
        let (mut reaped_s, mut seen_s) = (0.0, 0.0);
        for (process, member) in &mut self.members {
            let folder = self.proc.join(process.to_string());
            let now = stat_of(&folder, self.counts_blocks).filter(|now| now.began == member.began);
            let Some(now) = now else {
                seen_s += member.used.cpu_s + member.reaped_s;
                gone.push(*process);
                continue;
            };
            reaped_s += (now.reaped_s - member.reaped_s).max(0.0);
            member.reaped_s = now.reaped_s;
            member.used.renew(&now.used);
            if !now.has_ended {
                left.insert(*process, now);
            }
        }
        for process in gone {
            let member = self.members.remove(&process).unwrap_or_default();
            self.ended.add(&member.used);
        }
        // Whoever waited for those that are gone has their time now, and that of others that came and went between two looks.
        let unseen_s = reaped_s - seen_s;
        self.ended.cpu_s += (unseen_s - self.owed_s).max(0.0);
        // One that ended behind the look at whoever waited for it is told at the next one.
        self.owed_s = (-unseen_s).max(0.0);
        left
    }

    /// Looks at the threads of processes, where that is due.
    fn look_at_threads(&mut self, processes: &BTreeMap<u32, Stat>) {
        if !self.thread_looks.is_due(Duration::ZERO) {
            return;
        }
        let passed_s = self
            .thread_looks
            .since()
            .map_or(f64::INFINITY, |since| since.as_secs_f64());
        let (proc, members, awake) = (&self.proc, &mut self.members, &mut self.awake);
        awake.clear();
        let all = self.thread_looks.look(|| {
            let mut all = Vec::new();
            for process in processes.keys() {
                let folder = proc.join(process.to_string());
                let turns = members.get_mut(process).map(|member| member.threads.look(&folder));
                let turns = turns.unwrap_or_default();
                if turns.iter().any(|one| one.ready_s() >= AWAKE * passed_s) {
                    awake.insert(*process);
                }
                all.extend(turns);
            }
            all
        });
        if !all.is_empty() {
            self.queued.get_or_insert_default().add(&all);
        }
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
                    let member = Member {
                        began,
                        used,
                        ..Member::default()
                    };
                    self.members.insert(process, member);
                }
            }
        }
        self.others.extend(new.into_keys());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::thread_turns::tests::{thread, turns};

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

    /// Changes words of a process's `stat`.
    fn change(proc: &Path, number: u32, words: &str, to: &str) {
        let path = proc.join(format!("{number}/stat"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(words), "{text}");
        std::fs::write(path, text.replacen(words, to, 1)).unwrap();
    }

    #[test]
    fn what_came_and_went_between_two_looks_counts_once() {
        let proc = tempfile::tempdir().unwrap();
        for (number, parent) in [(7, 1), (8, 7), (9, 7)] {
            process(proc.path(), number, parent, 100, 1000);
        }
        let mut tree = ProcessTree::at(proc.path(), 7);
        let mut cpu_s = || tree.sample().unwrap().used.cpu_s;
        assert!((cpu_s() - 4.5).abs() < 1e-9);
        // One that was seen has ended, and one that was not, with 2 seconds.
        std::fs::remove_dir_all(proc.path().join("8")).unwrap();
        change(proc.path(), 7, " 50 0 0 ", " 50 350 0 ");
        assert!((cpu_s() - 6.5).abs() < 1e-9);
        assert!((cpu_s() - 6.5).abs() < 1e-9);
        // Its parent was looked at before it ended.
        std::fs::remove_dir_all(proc.path().join("9")).unwrap();
        assert!((cpu_s() - 6.5).abs() < 1e-9);
        change(proc.path(), 7, " 50 350 0 ", " 50 500 0 ");
        assert!((cpu_s() - 6.5).abs() < 1e-9);
    }

    #[test]
    fn a_process_that_has_ended_unasked_neither_runs_nor_sleeps() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, 1, 100, 1000);
        process(proc.path(), 8, 7, 900, 0);
        change(proc.path(), 7, ") S ", ") R ");
        change(proc.path(), 8, ") S ", ") Z ");
        let sample = ProcessTree::at(proc.path(), 7).sample().unwrap();
        assert_eq!((sample.processes, sample.is_asleep), (BTreeSet::from([7]), false));
        assert!((sample.used.cpu_s - 11.0).abs() < 1e-9, "{:?}", sample.used);
    }

    #[test]
    fn threads_tell_waits_for_processors_and_whether_a_process_computes() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, 1, 100, 1000);
        let folder = proc.path().join("7");
        let mut tree = ProcessTree::at(proc.path(), 7);
        let first = tree.sample().unwrap();
        assert_eq!((first.queued, first.is_asleep), (None, true));
        thread(&folder, 7, turns(1.0, 0.5));
        thread(&folder, 71, turns(1e9, 0.25));
        let second = tree.sample().unwrap();
        assert_eq!(second.queued.map(|queued| queued.all_s), Some(0.75));
        assert!(!second.is_asleep);
        assert!(tree.sample().unwrap().is_asleep);
    }

    #[test]
    fn processors_are_those_of_processes_that_compute() {
        let proc = tempfile::tempdir().unwrap();
        for (number, parent, ticks, allowed) in [(7, 1, 0, "0-7"), (8, 7, 9000, "2-3")] {
            process(proc.path(), number, parent, ticks, 1000);
            let status = format!("VmRSS:\t8 kB\nCpus_allowed_list:\t{allowed}\n");
            std::fs::write(proc.path().join(format!("{number}/status")), status).unwrap();
        }
        let sample = ProcessTree::at(proc.path(), 7).sample().unwrap();
        assert_eq!(sample.processors, BTreeSet::from([2, 3]));
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
