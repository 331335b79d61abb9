//! Use of processors by all programs of the machine together.
//!
//! | field of `cpuN` in `/proc/stat` | meaning |
//! |---|---|
//! | 1, 2, 3 | ticks in user mode, there at low priority, and in the kernel |
//! | 6, 7 | ticks in interrupts and soft interrupts |
//! | 8 | ticks that the hypervisor gave to another machine |
//!
//! Source: proc(5).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use peft_tune_engine::profile::disturbance::TICKS_PER_S;

/// Time of processors since they were first looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AllUse {
    pub busy_s: f64,
    /// Time that the hypervisor gave to other machines.
    pub stolen_s: f64,
}

/// Reads the use of the processors that a run may use.
#[derive(Debug)]
pub(super) struct ProcessorUse {
    path: PathBuf,
    last: BTreeMap<usize, AllUse>,
    sum: AllUse,
}

impl ProcessorUse {
    pub(super) fn new() -> Self {
        Self::at(Path::new("/"))
    }

    fn at(root: &Path) -> Self {
        Self {
            path: root.join("proc/stat"),
            last: BTreeMap::new(),
            sum: AllUse::default(),
        }
    }

    /// Use so far, of the processors that were asked for at each look, or of all where none was named. `None` where the system does
    /// not tell.
    pub(super) fn look(&mut self, processors: &BTreeSet<usize>) -> Option<AllUse> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let now: BTreeMap<usize, AllUse> = text.lines().filter_map(use_of).collect();
        let asked = now
            .iter()
            .filter(|(number, _)| processors.is_empty() || processors.contains(*number));
        for (number, now) in asked {
            if let Some(before) = self.last.get(number) {
                self.sum.busy_s += (now.busy_s - before.busy_s).max(0.0);
                self.sum.stolen_s += (now.stolen_s - before.stolen_s).max(0.0);
            }
        }
        self.last = now;
        (!self.last.is_empty()).then_some(self.sum)
    }
}

/// The processor that a line is of, with its use since the machine began.
fn use_of(line: &str) -> Option<(usize, AllUse)> {
    let mut words = line.split_whitespace();
    let number = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let ticks: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    let seconds = |fields: &[usize]| {
        let known = fields.iter().filter_map(|field| ticks.get(field - 1));
        known.sum::<f64>() / TICKS_PER_S
    };
    let used = AllUse {
        busy_s: seconds(&[1, 2, 3, 6, 7]),
        stolen_s: seconds(&[8]),
    };
    Some((number, used))
}

/// `0-2,5` as numbers; what is no number is passed over.
pub(super) fn processor_list(text: &str) -> BTreeSet<usize> {
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
    fn the_use_of_the_processors_that_are_asked_for_is_added_up() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let write = |text: &str| std::fs::write(folder.path().join("proc/stat"), text).unwrap();
        let mut all = ProcessorUse::at(folder.path());
        assert_eq!(all.look(&BTreeSet::new()), None);
        write("cpu  999 0 0 0\ncpu0 100 0 0 5000 0 0 0 50\ncpu1 900 0 0 0 0 0 0 0 7 7\nintr 5\n");
        assert_eq!(all.look(&BTreeSet::from([0])), Some(AllUse::default()));
        write("cpu  999 0 0 0\ncpu0 200 20 30 6000 70 4 46 100\ncpu1 1900 0 0 0 0 0 0 0 7 7\nintr 5\n");
        let used = all.look(&BTreeSet::from([0])).unwrap();
        assert!(
            (used.busy_s - 2.0).abs() < 1e-9 && (used.stolen_s - 0.5).abs() < 1e-9,
            "{used:?}"
        );
        write("cpu0 200 20 30 6000 70 4 46 100\ncpu1 2000\n");
        let used = all.look(&BTreeSet::new()).unwrap();
        assert!((used.busy_s - 3.0).abs() < 1e-9, "{used:?}");
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(processor_list("\t0,2-3\n"), BTreeSet::from([0, 2, 3]));
        assert_eq!(processor_list("x,1-"), BTreeSet::new());
    }
}
