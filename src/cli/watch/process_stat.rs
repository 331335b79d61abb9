//! One process as Linux shows it below `/proc`.
//!
//! | file | field | meaning |
//! |---|---|---|
//! | `stat` | 3, 4 | state, parent |
//! | | 12 | pages that were read from a disk |
//! | | 14, 15 | ticks in user mode and in the kernel |
//! | | 16, 17 | the same of children that have ended and that it has waited for |
//! | | 22 | tick at which it began |
//! | | 42 | ticks in which it waited for a block of a disk, where the kernel counts them |
//! | `status` | `VmRSS`, `VmSwap` | memory, and what of it is in the swap |
//! | | `Cpus_allowed_list` | processors that it may run on |
//! | `io` | `read_bytes`, `write_bytes` | bytes that a disk had to read and write |
//!
//! Source: proc(5).

use std::collections::BTreeSet;
use std::path::Path;

use super::processor_use::processor_list;
use peft_tune_engine::profile::disturbance::TICKS_PER_S;
use peft_tune_engine::profile::field_bytes;

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
    /// Takes what the process says now. Once it has ended it no longer tells all.
    pub(super) fn renew(&mut self, now: &Self) {
        *self = Self {
            blocked_s: now.blocked_s.or(self.blocked_s),
            read_bytes: now.read_bytes.or(self.read_bytes),
            written_bytes: now.written_bytes.or(self.written_bytes),
            ..*now
        };
    }

    pub(super) fn add(&mut self, other: &Self) {
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

/// One process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stat {
    pub parent: u32,
    pub began: u64,
    /// Whether its main thread waits for something other than a processor.
    pub is_asleep: bool,
    /// Whether it has ended, and nobody has asked how.
    pub has_ended: bool,
    pub used: Used,
    /// Processor time of children that it has waited for.
    pub reaped_s: f64,
}

/// What `status` says of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Status {
    pub resident_bytes: u64,
    pub swap_bytes: u64,
    pub processors: BTreeSet<usize>,
}

/// What `stat` and `io` of a process say; `None` where it is gone.
pub(super) fn stat_of(folder: &Path, counts_blocks: bool) -> Option<Stat> {
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
    let state = fields.first()?;
    Some(Stat {
        parent: u32::try_from(number(4)?).ok()?,
        began: number(22)?,
        is_asleep: !state.starts_with('R'),
        has_ended: state.starts_with(['Z', 'X', 'x']),
        reaped_s: ticks(16) + ticks(17),
        used: Used {
            cpu_s: ticks(14) + ticks(15),
            blocked_s: Some(ticks(42)),
            major_faults: number(12).unwrap_or(0),
            ..Used::default()
        },
    })
}

pub(super) fn status_of(folder: &Path) -> Status {
    let bytes = std::fs::read(folder.join("status")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let of = |field: &str| field_bytes(&text, field).unwrap_or(0);
    let allowed = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Status {
        resident_bytes: of("VmRSS:"),
        swap_bytes: of("VmSwap:"),
        processors: allowed.map(processor_list).unwrap_or_default(),
    }
}
