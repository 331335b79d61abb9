//! Who may measure when: a profile phase has its hardware to itself, so that what it measures is the setting's own.
//!
//! The worker whose profile phase is next waits. The others on the same hardware are held at the end of their step; when
//! all of them stand still, the first in line measures. When the line is empty all continue. Trials that come meanwhile
//! wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What to tell a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnOrder {
    Hold { slot: usize, turn: u64 },
    Measure { slot: usize },
    Resume { slot: usize },
}

/// The workers of one piece of hardware, by the number of their slot.
#[derive(Debug, Default)]
pub(super) struct Turns {
    turn: u64,
    /// With a trial.
    busy: BTreeSet<usize>,
    /// Asked to hold, in which turn.
    asked: BTreeMap<usize, u64>,
    held: BTreeSet<usize>,
    /// Waiting for their turn to measure.
    line: VecDeque<usize>,
    measuring: Option<usize>,
}

impl Turns {
    /// Whether somebody measures or waits to, so that no other trial may begin.
    pub(super) fn is_closed(&self) -> bool {
        self.measuring.is_some() || !self.line.is_empty()
    }

    /// A trial began.
    pub(super) fn began(&mut self, slot: usize) {
        self.busy.insert(slot);
    }

    /// A trial is before its profile phase.
    pub(super) fn is_ready(&mut self, slot: usize) -> Vec<TurnOrder> {
        if self.busy.contains(&slot) && !self.line.contains(&slot) {
            self.line.push_back(slot);
        }
        self.advance()
    }

    /// A worker stands still, as it was asked to in this turn.
    pub(super) fn is_held(&mut self, slot: usize, turn: u64) -> Vec<TurnOrder> {
        if self.asked.get(&slot) == Some(&turn) {
            self.held.insert(slot);
        }
        self.advance()
    }

    /// A profile phase is over.
    pub(super) fn has_measured(&mut self, slot: usize) -> Vec<TurnOrder> {
        if self.measuring == Some(slot) {
            self.measuring = None;
        }
        self.advance()
    }

    /// A trial ended, or its worker did.
    pub(super) fn ended(&mut self, slot: usize) -> Vec<TurnOrder> {
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

    fn advance(&mut self) -> Vec<TurnOrder> {
        let mut orders = Vec::new();
        if self.measuring.is_some() {
            return orders;
        }
        let Some(first) = self.line.front().copied() else {
            orders.extend(self.asked.keys().map(|slot| TurnOrder::Resume { slot: *slot }));
            self.asked.clear();
            self.held.clear();
            return orders;
        };
        for slot in self.busy.iter().filter(|slot| !self.line.contains(slot)) {
            if !self.asked.contains_key(slot) {
                self.turn += 1;
                self.asked.insert(*slot, self.turn);
                orders.push(TurnOrder::Hold {
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
            orders.push(TurnOrder::Measure { slot: first });
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TurnOrder::{Hold, Measure, Resume};

    #[test]
    fn one_that_is_alone_measures_at_once() {
        let mut turns = Turns::default();
        turns.began(0);
        assert_eq!(turns.is_ready(0), [Measure { slot: 0 }]);
        assert!(turns.is_closed());
        assert!(turns.has_measured(0).is_empty() && !turns.is_closed());
    }

    #[test]
    fn the_others_stand_still_before_one_measures_and_go_on_after() {
        let mut turns = Turns::default();
        (0..3).for_each(|slot| turns.began(slot));
        let holds = [Hold { slot: 0, turn: 1 }, Hold { slot: 2, turn: 2 }];
        assert_eq!(turns.is_ready(1), holds);
        assert!(turns.is_held(0, 1).is_empty());
        assert!(turns.is_held(2, 9).is_empty(), "an answer to an older hold");
        assert_eq!(turns.is_held(2, 2), [Measure { slot: 1 }]);
        assert!(turns.computes(1) && !turns.computes(0));
        assert_eq!(turns.has_measured(1), [Resume { slot: 0 }, Resume { slot: 2 }]);
        assert!(turns.computes(0));
    }

    #[test]
    fn those_in_line_measure_one_after_the_other_and_each_stands_still_for_the_next() {
        let mut turns = Turns::default();
        (0..2).for_each(|slot| turns.began(slot));
        assert_eq!(turns.is_ready(0), [Hold { slot: 1, turn: 1 }]);
        // It comes to its own profile phase before its next step.
        assert_eq!(turns.is_ready(1), [Measure { slot: 0 }]);
        assert_eq!(turns.has_measured(0), [Hold { slot: 0, turn: 2 }]);
        assert_eq!(turns.is_held(0, 2), [Measure { slot: 1 }]);
        assert_eq!(turns.ended(1), [Resume { slot: 0 }]);
    }

    #[test]
    fn a_death_keeps_nobody_waiting() {
        let mut turns = Turns::default();
        (0..3).for_each(|slot| turns.began(slot));
        turns.is_ready(0);
        turns.is_held(1, 1);
        assert_eq!(turns.ended(2), [Measure { slot: 0 }]);
        assert_eq!(turns.ended(0), [Resume { slot: 1 }]);
        turns.is_ready(1);
        assert_eq!(turns.ended(1), []);
        assert!(!turns.is_closed());
    }
}
