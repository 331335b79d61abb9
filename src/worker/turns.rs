//! Who may measure when: a profile phase has its hardware to itself, so that what it measures is the setting's own.
//!
//! The worker whose profile phase is next waits. The others on the same hardware are held at the end of their step; when
//! all of them stand still, the first in line measures. When the line is empty all go on. Trials that come meanwhile wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What to tell a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnOrder {
    Hold { place: usize, turn: u64 },
    Measure { place: usize },
    Resume { place: usize },
}

/// The workers of one piece of hardware, by the number of their place.
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
    pub(super) fn began(&mut self, place: usize) {
        self.busy.insert(place);
    }

    /// A trial is before its profile phase.
    pub(super) fn is_ready(&mut self, place: usize) -> Vec<TurnOrder> {
        if self.busy.contains(&place) && !self.line.contains(&place) {
            self.line.push_back(place);
        }
        self.advance()
    }

    /// A worker stands still, as it was asked to in this turn.
    pub(super) fn is_held(&mut self, place: usize, turn: u64) -> Vec<TurnOrder> {
        if self.asked.get(&place) == Some(&turn) {
            self.held.insert(place);
        }
        self.advance()
    }

    /// A profile phase is over.
    pub(super) fn has_measured(&mut self, place: usize) -> Vec<TurnOrder> {
        if self.measuring == Some(place) {
            self.measuring = None;
        }
        self.advance()
    }

    /// A trial ended, or its worker did.
    pub(super) fn ended(&mut self, place: usize) -> Vec<TurnOrder> {
        self.busy.remove(&place);
        self.asked.remove(&place);
        self.held.remove(&place);
        self.line.retain(|other| *other != place);
        self.has_measured(place)
    }

    /// Whether a worker computes: it has a trial and is neither held nor waiting for its turn.
    pub(super) fn computes(&self, place: usize) -> bool {
        self.busy.contains(&place) && !self.held.contains(&place) && !self.line.contains(&place)
    }

    /// Whether a worker stands still because others measure.
    pub(super) fn waits(&self, place: usize) -> bool {
        self.held.contains(&place) || self.line.contains(&place)
    }

    fn advance(&mut self) -> Vec<TurnOrder> {
        let mut orders = Vec::new();
        if self.measuring.is_some() {
            return orders;
        }
        let Some(first) = self.line.front().copied() else {
            orders.extend(self.asked.keys().map(|place| TurnOrder::Resume { place: *place }));
            self.asked.clear();
            self.held.clear();
            return orders;
        };
        for place in self.busy.iter().filter(|place| !self.line.contains(place)) {
            if !self.asked.contains_key(place) {
                self.turn += 1;
                self.asked.insert(*place, self.turn);
                orders.push(TurnOrder::Hold {
                    place: *place,
                    turn: self.turn,
                });
            }
        }
        let still = |place: &usize| self.line.contains(place) || self.held.contains(place);
        if self.busy.iter().all(still) {
            self.line.pop_front();
            self.measuring = Some(first);
            // Leave to measure takes a hold back.
            self.asked.remove(&first);
            self.held.remove(&first);
            orders.push(TurnOrder::Measure { place: first });
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
        assert_eq!(turns.is_ready(0), [Measure { place: 0 }]);
        assert!(turns.is_closed());
        assert!(turns.has_measured(0).is_empty() && !turns.is_closed());
    }

    #[test]
    fn the_others_stand_still_before_one_measures_and_go_on_after() {
        let mut turns = Turns::default();
        (0..3).for_each(|place| turns.began(place));
        let holds = [Hold { place: 0, turn: 1 }, Hold { place: 2, turn: 2 }];
        assert_eq!(turns.is_ready(1), holds);
        assert!(turns.is_held(0, 1).is_empty());
        assert!(turns.is_held(2, 9).is_empty(), "an answer to an older hold");
        assert_eq!(turns.is_held(2, 2), [Measure { place: 1 }]);
        assert!(turns.computes(1) && !turns.computes(0));
        assert_eq!(turns.has_measured(1), [Resume { place: 0 }, Resume { place: 2 }]);
        assert!(turns.computes(0));
    }

    #[test]
    fn those_in_line_measure_one_after_the_other_and_each_stands_still_for_the_next() {
        let mut turns = Turns::default();
        (0..2).for_each(|place| turns.began(place));
        assert_eq!(turns.is_ready(0), [Hold { place: 1, turn: 1 }]);
        // It comes to its own profile phase before its next step.
        assert_eq!(turns.is_ready(1), [Measure { place: 0 }]);
        assert_eq!(turns.has_measured(0), [Hold { place: 0, turn: 2 }]);
        assert_eq!(turns.is_held(0, 2), [Measure { place: 1 }]);
        assert_eq!(turns.ended(1), [Resume { place: 0 }]);
    }

    #[test]
    fn a_death_keeps_nobody_waiting() {
        let mut turns = Turns::default();
        (0..3).for_each(|place| turns.began(place));
        turns.is_ready(0);
        turns.is_held(1, 1);
        assert_eq!(turns.ended(2), [Measure { place: 0 }]);
        assert_eq!(turns.ended(0), [Resume { place: 1 }]);
        turns.is_ready(1);
        assert_eq!(turns.ended(1), []);
        assert!(!turns.is_closed());
    }
}
