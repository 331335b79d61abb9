//! Turns of threads on processors: the time that they ran, and the time that they were ready and waited for a processor.
//!
//! | field of `task/TID/schedstat` | meaning |
//! |---|---|
//! | 1 | nanoseconds on a processor |
//! | 2 | nanoseconds in the queue of one, ready to run |
//!
//! Source: the kernel's Documentation/scheduler/sched-stats. A kernel that does not count them has no such file.

use std::collections::BTreeMap;
use std::path::Path;

/// Part of the longest turn of a look from which a thread computes: others wake up now and then, and nothing waits for them.
const COMPUTES: f64 = 0.5;

/// Time of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Turns {
    pub ran_s: f64,
    pub queued_s: f64,
}

impl Turns {
    /// Time in which the thread waited for nothing but a processor.
    pub(super) fn ready_s(&self) -> f64 {
        self.ran_s + self.queued_s
    }

    /// What is new since an earlier look at the thread.
    fn since(self, before: Self) -> Self {
        // Another thread has its number now.
        if self.ran_s < before.ran_s || self.queued_s < before.queued_s {
            return self;
        }
        Self {
            ran_s: self.ran_s - before.ran_s,
            queued_s: self.queued_s - before.queued_s,
        }
    }
}

/// Threads of one process as they were seen last.
#[derive(Debug, Default)]
pub(super) struct Threads {
    last: BTreeMap<u32, Turns>,
}

impl Threads {
    /// What each thread of the process at `folder` has done since the last look; nothing where the kernel does not count it.
    pub(super) fn look(&mut self, folder: &Path) -> Vec<Turns> {
        let entries = std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
        let now: BTreeMap<u32, Turns> = entries
            .filter_map(|entry| {
                let thread = entry.file_name().to_str()?.parse::<u32>().ok()?;
                Some((thread, turns_of(&entry.path())?))
            })
            .collect();
        let before = |thread: &u32| self.last.get(thread).copied().unwrap_or_default();
        let new = now.iter().map(|(thread, turns)| turns.since(before(thread))).collect();
        self.last = now;
        new
    }
}

fn turns_of(folder: &Path) -> Option<Turns> {
    let text = std::fs::read_to_string(folder.join("schedstat")).ok()?;
    let mut seconds = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let mut next = || Some(seconds.next()?? as f64 / 1e9);
    Some(Turns {
        ran_s: next()?,
        queued_s: next()?,
    })
}

/// Time that threads of a run were ready and waited for a processor, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Queued {
    /// Time of all threads together.
    pub all_s: f64,
    /// Time of the thread that waited longest, from look to look, among those that computed.
    pub longest_s: f64,
}

impl Queued {
    /// Adds what the threads did from one look to the next.
    pub(super) fn add(&mut self, turns: &[Turns]) {
        let most = turns.iter().map(Turns::ready_s).fold(0.0, f64::max);
        let computing = turns.iter().filter(|one| one.ready_s() >= COMPUTES * most);
        self.longest_s += computing.map(|one| one.queued_s).fold(0.0, f64::max);
        self.all_s += turns.iter().map(|one| one.queued_s).sum::<f64>();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a thread of the process at `folder` as `/proc` has it.
    pub(in crate::cli::watch) fn thread(folder: &Path, number: u32, turns: Turns) {
        let folder = folder.join(format!("task/{number}"));
        std::fs::create_dir_all(&folder).unwrap();
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        let text = format!("{} {} 12\n", nanoseconds(turns.ran_s), nanoseconds(turns.queued_s));
        std::fs::write(folder.join("schedstat"), text).unwrap();
    }

    /// Turns of so many seconds.
    pub(in crate::cli::watch) fn turns(ran_s: f64, queued_s: f64) -> Turns {
        Turns { ran_s, queued_s }
    }

    #[test]
    fn each_look_tells_what_is_new() {
        let process = tempfile::tempdir().unwrap();
        let mut threads = Threads::default();
        assert!(threads.look(process.path()).is_empty());
        thread(process.path(), 7, turns(2.0, 0.5));
        assert_eq!(threads.look(process.path()), [turns(2.0, 0.5)]);
        thread(process.path(), 7, turns(2.5, 1.0));
        thread(process.path(), 8, turns(0.25, 0.0));
        assert_eq!(threads.look(process.path()), [turns(0.5, 0.5), turns(0.25, 0.0)]);
        // Another thread has the number of one that ended.
        thread(process.path(), 8, turns(0.125, 0.125));
        assert_eq!(threads.look(process.path()), [turns(0.0, 0.0), turns(0.125, 0.125)]);
        std::fs::write(process.path().join("task/7/schedstat"), "x\n").unwrap();
        assert_eq!(threads.look(process.path()).len(), 1);
    }

    #[test]
    fn the_longest_wait_is_that_of_a_thread_that_computes() {
        let mut queued = Queued::default();
        queued.add(&[turns(0.5, 0.5), turns(1.0, 0.0), turns(0.01, 0.2)]);
        queued.add(&[turns(0.9, 0.1), turns(0.75, 0.25)]);
        assert!((queued.longest_s - 0.75).abs() < 1e-9, "{queued:?}");
        assert!((queued.all_s - 1.05).abs() < 1e-9, "{queued:?}");
        queued.add(&[]);
        assert!((queued.all_s - 1.05).abs() < 1e-9, "{queued:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_of_this_process_are_seen_where_the_kernel_counts_their_turns() {
        let folder = Path::new("/proc/self");
        if folder.join("schedstat").exists() {
            let turns = Threads::default().look(folder);
            assert!(turns.iter().any(|one| one.ran_s > 0.0), "{turns:?}");
        }
    }
}
