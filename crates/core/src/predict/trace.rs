//! Trace of what a piece of a step allocates, frees and computes, recorded once and replayed for every layer that is
//! alike.
//!
//! A trace keeps the net change of memory and its highest rise above where it began, so that replaying one costs the
//! same whatever it holds.

use super::memory_category::{Bytes, MEMORY_CATEGORIES, MemoryCategory};
use super::op::{Op, Stage};
use crate::plan::ThreadScratch;

/// A recorded piece of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    now: [i64; MEMORY_CATEGORIES],
    total: i64,
    rise: i64,
    at_rise: [i64; MEMORY_CATEGORIES],
    /// Ops that the piece computes.
    pub ops: Vec<Op>,
    /// Stage of the ops that are recorded next.
    pub stage: Stage,
    /// Scratch that threads keep afterwards.
    pub scratch: ThreadScratch,
}

impl Trace {
    /// A trace of nothing yet.
    pub fn new(stage: Stage) -> Self {
        Self {
            now: [0; MEMORY_CATEGORIES],
            total: 0,
            rise: 0,
            at_rise: [0; MEMORY_CATEGORIES],
            ops: Vec::with_capacity(48),
            stage,
            scratch: ThreadScratch::default(),
        }
    }

    /// Allocates `bytes` of a category.
    pub fn hold(&mut self, category: MemoryCategory, bytes: u64) {
        let bytes = bytes.cast_signed();
        self.now[category as usize] += bytes;
        self.total += bytes;
        if self.total > self.rise {
            self.rise = self.total;
            self.at_rise = self.now;
        }
    }

    /// Frees `bytes` of a category.
    pub fn free(&mut self, category: MemoryCategory, bytes: u64) {
        let bytes = bytes.cast_signed();
        self.now[category as usize] -= bytes;
        self.total -= bytes;
    }

    /// Allocates and frees at once.
    pub fn spike(&mut self, category: MemoryCategory, bytes: u64) {
        self.hold(category, bytes);
        self.free(category, bytes);
    }

    /// Calls the same bytes another name.
    pub fn rename(&mut self, from: MemoryCategory, to: MemoryCategory, bytes: u64) {
        self.free(from, bytes);
        // Not `hold`: nothing is allocated.
        self.now[to as usize] += bytes.cast_signed();
        self.total += bytes.cast_signed();
    }

    /// Highest bytes above where it began.
    pub fn rise(&self) -> u64 {
        self.rise.unsigned_abs()
    }

    /// Bytes of a category that are there afterwards and were not before.
    pub fn change(&self, category: MemoryCategory) -> i64 {
        self.now[category as usize]
    }
}

/// Memory over a step, as traces are replayed.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    now: [i64; MEMORY_CATEGORIES],
    peak: i64,
    at_peak: [i64; MEMORY_CATEGORIES],
    pub scratch: ThreadScratch,
}

impl Level {
    /// Plays a trace.
    pub(super) fn replay(&mut self, trace: &Trace) {
        let before: i64 = self.now.iter().sum();
        if before + trace.rise > self.peak {
            self.peak = before + trace.rise;
            self.at_peak = self.now;
            for (at_peak, rise) in self.at_peak.iter_mut().zip(trace.at_rise) {
                *at_peak += rise;
            }
        }
        for (now, change) in self.now.iter_mut().zip(trace.now) {
            *now += change;
        }
        self.scratch.take(&trace.scratch);
    }

    /// Allocates `bytes` of a category.
    pub(super) fn hold(&mut self, category: MemoryCategory, bytes: u64) {
        self.now[category as usize] += bytes.cast_signed();
        let total: i64 = self.now.iter().sum();
        if total > self.peak {
            self.peak = total;
            self.at_peak = self.now;
        }
    }

    /// Frees `bytes` of a category.
    pub(super) fn free(&mut self, category: MemoryCategory, bytes: u64) {
        self.now[category as usize] -= bytes.cast_signed();
    }

    /// Bytes by category when the total was highest.
    pub(super) fn at_peak(&self) -> Bytes {
        Bytes::from_signed(self.at_peak)
    }

    /// Bytes of what only passes have: saved activations, logits, the workspace of attention and scratch.
    pub(super) fn left_of_passes(&self) -> [i64; 4] {
        let of_passes = [
            MemoryCategory::SavedActivations,
            MemoryCategory::Logits,
            MemoryCategory::AttentionWorkspace,
            MemoryCategory::Scratch,
        ];
        of_passes.map(|category| self.now[category as usize])
    }

    /// Ends a phase with the bytes of [`Level::at_peak`]; from then on that is the highest of what follows.
    pub(super) fn end_phase(&mut self) -> Bytes {
        let ended = self.at_peak();
        self.peak = self.now.iter().sum();
        self.at_peak = self.now;
        ended
    }
}
