//! Memory of several processes, with the pages that they share counted once.
//!
//! The kernel walks all pages of a process to tell its part of what it shares (`smaps_rollup`, `Pss`). That is looked up now and then,
//! and when other processes have come or some have gone. Until then those that are new are left out: a process that was just forked
//! seems to have as much again as the one that forked it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::paced::Paced;
use peft_tune_engine::profile::field_bytes;

/// Least time between two looks: at the same processes, and at others.
const EVERY: Duration = Duration::from_secs(30);
const CHANGED_EVERY: Duration = Duration::from_secs(2);

/// Part of the resident sets that is left.
#[derive(Debug)]
pub(super) struct SharedPages {
    share: f64,
    /// Processes that it is of.
    of: BTreeSet<u32>,
    looks: Paced,
}

impl SharedPages {
    pub(super) fn new(looks: Paced) -> Self {
        Self {
            share: 1.0,
            of: BTreeSet::new(),
            looks,
        }
    }

    /// Bytes of processes with these resident sets, which have their folders in `proc`.
    pub(super) fn count_once(&mut self, proc: &Path, resident: &BTreeMap<u32, u64>) -> u64 {
        let most = resident.values().copied().max().unwrap_or(0);
        if resident.len() < 2 {
            return most;
        }
        let is_same = self.of.iter().eq(resident.keys());
        if self.looks.is_due(if is_same { EVERY } else { CHANGED_EVERY }) {
            self.share = self.looks.look(|| share_of(proc, resident));
            self.of = resident.keys().copied().collect();
        }
        let known = resident.iter().filter(|(process, _)| self.of.contains(*process));
        let known: u64 = known.map(|(_, bytes)| *bytes).sum();
        // All together have at least what each has.
        ((known as f64 * self.share) as u64).max(most)
    }
}

fn share_of(proc: &Path, resident: &BTreeMap<u32, u64>) -> f64 {
    // A process that does not tell, or that has just ended, counts with all that it has.
    let part = |(process, bytes): (&u32, &u64)| proportional_of(&proc.join(process.to_string())).unwrap_or(*bytes);
    let parts: u64 = resident.iter().map(part).sum();
    let all: u64 = resident.values().sum();
    let share = parts as f64 / all.max(1) as f64;
    if (0.0..=1.0).contains(&share) { share } else { 1.0 }
}

/// Bytes with the process's part of shared pages.
fn proportional_of(folder: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(folder.join("smaps_rollup")).ok()?;
    Some(field_bytes(&text, "Pss:").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Writes the part that a process has of what is shared.
    fn part(proc: &Path, process: u32, mib: u64) {
        let folder = proc.join(process.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("Rss: 1 kB\nPss: {} kB\n", mib << 10);
        std::fs::write(folder.join("smaps_rollup"), text).unwrap();
    }

    #[test]
    fn what_is_shared_counts_once() {
        let proc = tempfile::tempdir().unwrap();
        // No second look is due within the test.
        let mut shared = SharedPages::new(Paced::new(1_000_000));
        let mut resident = BTreeMap::from([(7, 1000 * MIB)]);
        assert_eq!(shared.count_once(proc.path(), &resident), 1000 * MIB);
        for process in [7, 8] {
            part(proc.path(), process, 600);
            resident.insert(process, 1000 * MIB);
        }
        assert_eq!(shared.count_once(proc.path(), &resident), 1200 * MIB);
        // A process that was forked since the last look adds nothing before the next one.
        resident.insert(9, 1000 * MIB);
        assert_eq!(shared.count_once(proc.path(), &resident), 1200 * MIB);
        // The largest has all of its own at least.
        resident.insert(9, 2000 * MIB);
        assert_eq!(shared.count_once(proc.path(), &resident), 2000 * MIB);
    }

    #[test]
    fn a_process_that_does_not_tell_counts_with_all_that_it_has() {
        let proc = tempfile::tempdir().unwrap();
        part(proc.path(), 7, 100);
        let resident = BTreeMap::from([(7, 200 * MIB), (8, 200 * MIB)]);
        let mut shared = SharedPages::new(Paced::new(0));
        assert_eq!(shared.count_once(proc.path(), &resident), 300 * MIB);
    }
}
