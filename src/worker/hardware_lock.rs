//! The lock on one piece of hardware: a profile phase has it to itself, so that what it measures is the setting's own.
//!
//! The worker whose profile phase is next waits. The others on the same hardware are held at the end of their step; when
//! all of them stand still, the first in line measures. When the line is empty all continue. Trials that come meanwhile
//! wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Order to a worker about the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockOrder {
    Hold { slot: usize, turn: u64 },
    Measure { slot: usize },
    Resume { slot: usize },
}

/// Workers of one piece of hardware, by the number of their slot: which one measures, and which ones stand still for it.
#[derive(Debug, Default)]
pub(super) struct HardwareLock {
    turn: u64,
    /// Slots with a trial.
    busy: BTreeSet<usize>,
    /// Slots that were asked to hold, each with its turn.
    asked: BTreeMap<usize, u64>,
    held: BTreeSet<usize>,
    /// Slots that wait for their turn to measure.
    line: VecDeque<usize>,
    measuring: Option<usize>,
}

impl HardwareLock {
    /// Whether a worker measures or waits to, so that no other trial may begin.
    pub(super) fn is_closed(&self) -> bool {
        self.measuring.is_some() || !self.line.is_empty()
    }

    /// Notes that a trial began.
    pub(super) fn began(&mut self, slot: usize) {
        self.busy.insert(slot);
    }

    /// Notes that a trial is before its profile phase; returns what the workers are told.
    pub(super) fn is_ready(&mut self, slot: usize) -> Vec<LockOrder> {
        if self.busy.contains(&slot) && !self.line.contains(&slot) {
            self.line.push_back(slot);
        }
        self.advance()
    }

    /// Notes that a worker stands still, as it was asked to in this turn; returns what the workers are told.
    pub(super) fn is_held(&mut self, slot: usize, turn: u64) -> Vec<LockOrder> {
        if self.asked.get(&slot) == Some(&turn) {
            self.held.insert(slot);
        }
        self.advance()
    }

    /// Notes that a profile phase is over; returns what the workers are told.
    pub(super) fn has_measured(&mut self, slot: usize) -> Vec<LockOrder> {
        if self.measuring == Some(slot) {
            self.measuring = None;
        }
        self.advance()
    }

    /// Notes that a trial ended, or its worker did; returns what the workers are told.
    pub(super) fn ended(&mut self, slot: usize) -> Vec<LockOrder> {
        self.busy.remove(&slot);
        self.asked.remove(&slot);
        self.held.remove(&slot);
        self.line.retain(|other| *other != slot);
        self.has_measured(slot)
    }

    /// Whether a worker computes: it has a trial and is neither held nor waiting for its turn.
    pub(super) fn computes(&self, slot: usize) -> bool {
        self.busy.contains(&slot) && !self.held.contains(&slot) && !self.line.contains(&slot)
    }

    /// Whether a worker stands still because others measure.
    pub(super) fn waits(&self, slot: usize) -> bool {
        self.held.contains(&slot) || self.line.contains(&slot)
    }

    fn advance(&mut self) -> Vec<LockOrder> {
        let mut orders = Vec::new();
        if self.measuring.is_some() {
            return orders;
        }
        let Some(first) = self.line.front().copied() else {
            orders.extend(self.asked.keys().map(|slot| LockOrder::Resume { slot: *slot }));
            self.asked.clear();
            self.held.clear();
            return orders;
        };
        for slot in self.busy.iter().filter(|slot| !self.line.contains(slot)) {
            if !self.asked.contains_key(slot) {
                self.turn += 1;
                self.asked.insert(*slot, self.turn);
                orders.push(LockOrder::Hold {
                    slot: *slot,
                    turn: self.turn,
                });
            }
        }
        let still = |slot: &usize| self.line.contains(slot) || self.held.contains(slot);
        if self.busy.iter().all(still) {
            self.line.pop_front();
            self.measuring = Some(first);
            // Leave to measure takes a hold back.
            self.asked.remove(&first);
            self.held.remove(&first);
            orders.push(LockOrder::Measure { slot: first });
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockOrder::{Hold, Measure, Resume};

    #[test]
    fn one_that_is_alone_measures_at_once() {
        let mut lock = HardwareLock::default();
        lock.began(0);
        assert_eq!(lock.is_ready(0), [Measure { slot: 0 }]);
        assert!(lock.is_closed());
        assert!(lock.has_measured(0).is_empty() && !lock.is_closed());
    }

    #[test]
    fn the_others_stand_still_before_one_measures_and_go_on_after() {
        let mut lock = HardwareLock::default();
        (0..3).for_each(|slot| lock.began(slot));
        let holds = [Hold { slot: 0, turn: 1 }, Hold { slot: 2, turn: 2 }];
        assert_eq!(lock.is_ready(1), holds);
        assert!(lock.is_held(0, 1).is_empty());
        assert!(lock.is_held(2, 9).is_empty(), "an answer to an older hold");
        assert_eq!(lock.is_held(2, 2), [Measure { slot: 1 }]);
        assert!(lock.computes(1) && !lock.computes(0));
        assert_eq!(lock.has_measured(1), [Resume { slot: 0 }, Resume { slot: 2 }]);
        assert!(lock.computes(0));
    }

    #[test]
    fn those_in_line_measure_one_after_the_other_and_each_stands_still_for_the_next() {
        let mut lock = HardwareLock::default();
        (0..2).for_each(|slot| lock.began(slot));
        assert_eq!(lock.is_ready(0), [Hold { slot: 1, turn: 1 }]);
        // It comes to its own profile phase before its next step.
        assert_eq!(lock.is_ready(1), [Measure { slot: 0 }]);
        assert_eq!(lock.has_measured(0), [Hold { slot: 0, turn: 2 }]);
        assert_eq!(lock.is_held(0, 2), [Measure { slot: 1 }]);
        assert_eq!(lock.ended(1), [Resume { slot: 0 }]);
    }

    #[test]
    fn a_death_keeps_nobody_waiting() {
        let mut lock = HardwareLock::default();
        (0..3).for_each(|slot| lock.began(slot));
        lock.is_ready(0);
        lock.is_held(1, 1);
        assert_eq!(lock.ended(2), [Measure { slot: 0 }]);
        assert_eq!(lock.ended(0), [Resume { slot: 1 }]);
        lock.is_ready(1);
        assert_eq!(lock.ended(1), []);
        assert!(!lock.is_closed());
    }
}
