//! Order in which the sets of a mixture take turns.
//!
//! | symbol | meaning |
//! |---|---|
//! | k, N | sets; rows of all of them together, which is an epoch of the mixture |
//! | w_i | share of set i; their sum is 1 |
//! | n_i | rows that an epoch takes of set i: N w_i, rounded by largest remainders, at least 1 |
//! | x_i(t) | rows of set i among the first t |
//!
//! No chance decides whose turn it is. The turns of an epoch are those of the chairman assignment of Tijdeman (1980):
//! of the sets that are behind by 1/(2k-2) of a row or more, the one whose next row is due first. That keeps
//! |x_i(t) - t n_i / N| below 1 for each set and each t. All epochs have the same turns, and so the bound holds for any
//! beginning of the endless sequence.
//!
//! Each set goes through epochs of its own, shuffled each time, whatever the others do: a small set with a large share
//! begins again while a large one is not used up.

use std::cmp::Reverse;
use std::ops::Range;

use super::order::{Permutation, RowOrder};

/// The sets of a mixture and their turns.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    sets: Vec<MixedSet>,
    /// Sets whose turn it is at each position of an epoch: the rows that an epoch takes are numbered set by set.
    turns: Vec<u32>,
}

#[derive(Clone, Debug)]
struct MixedSet {
    /// Rows of the set among those of all sets.
    rows: Range<usize>,
    /// Rows that an epoch takes of the set.
    taken: usize,
    /// Rows that an epoch takes of the sets before this one.
    taken_before: usize,
}

impl Mixture {
    /// Mixes sets with the given rows, none of them empty, by weights above 0.
    pub(super) fn new(sets: impl IntoIterator<Item = (Range<usize>, f64)>) -> Self {
        let (rows, weights): (Vec<_>, Vec<_>) = sets.into_iter().unzip();
        let all = rows.iter().map(ExactSizeIterator::len).sum();
        let taken = apportioned(all, &weights);
        let mut taken_before = 0;
        let sets: Vec<_> = rows
            .into_iter()
            .zip(&taken)
            .map(|(rows, taken)| {
                let before = taken_before;
                taken_before += taken;
                MixedSet {
                    rows,
                    taken: *taken,
                    taken_before: before,
                }
            })
            .collect();
        let turns = turns(&taken);
        Self { sets, turns }
    }

    /// Rows in an epoch.
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// How often an epoch goes through the rows of each set.
    pub(super) fn passes(&self) -> impl Iterator<Item = f64> + '_ {
        self.sets.iter().map(|set| set.taken as f64 / set.rows.len() as f64)
    }

    /// Sum over the rows of an epoch, of a set that is not used up by its mean row.
    pub(super) fn mean_sum(&self, of_row: impl Fn(usize) -> u64) -> f64 {
        let sets = self.sets.iter().zip(self.passes());
        sets.map(|(set, passes)| passes * set.rows.clone().map(&of_row).sum::<u64>() as f64)
            .sum()
    }

    /// The row at `position` of `epoch`.
    pub(super) fn row_at(&self, epoch: u64, position: usize, order: RowOrder) -> usize {
        let turn = self.turns[position] as usize;
        let number = self.sets.partition_point(|set| set.taken_before <= turn) - 1;
        let set = &self.sets[number];
        let taken = u128::from(epoch) * set.taken as u128 + (turn - set.taken_before) as u128;
        let rows = set.rows.len() as u128;
        self.own_row(number, (taken / rows) as u64, (taken % rows) as usize, order)
    }

    /// The row at `position` of an epoch of a set's own.
    fn own_row(&self, number: usize, epoch: u64, position: usize, order: RowOrder) -> usize {
        let rows = &self.sets[number].rows;
        let row = match order {
            RowOrder::File => position,
            RowOrder::Shuffled { seed } => {
                // Sets of the same size are not shuffled alike.
                let seed = seed.wrapping_add((number as u64).wrapping_mul(SEEDS_APART));
                Permutation::new(seed, epoch, rows.len()).at(position)
            }
        };
        rows.start + row
    }

    /// Sum over all rows of the first `epochs`.
    pub(super) fn sum_of_epochs(&self, epochs: u64, order: RowOrder, of_row: impl Fn(usize) -> u64) -> u64 {
        let of_set = |(number, set): (usize, &MixedSet)| {
            let (taken, rows) = (u128::from(epochs) * set.taken as u128, set.rows.len() as u128);
            let (whole, begun) = ((taken / rows) as u64, (taken % rows) as usize);
            let once: u64 = set.rows.clone().map(&of_row).sum();
            let begun = (0..begun).map(|position| of_row(self.own_row(number, whole, position, order)));
            whole.saturating_mul(once).saturating_add(begun.sum())
        };
        self.sets.iter().enumerate().map(of_set).fold(0, u64::saturating_add)
    }

    /// Rows that stand for an epoch, set by set: of each set as many as an epoch takes. Of a set that is not used up, the
    /// longest rows and an even choice of the others; `length` says how long a row is.
    pub(super) fn typical_rows(&self, length: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut typical = Vec::with_capacity(self.len());
        for set in &self.sets {
            let mut rows: Vec<usize> = set.rows.clone().collect();
            let mut longest = 0;
            if set.taken < rows.len() {
                rows.sort_by_cached_key(|row| Reverse(length(*row)));
                longest = LONGEST.min(set.taken / 16);
            }
            typical.extend(&rows[..longest]);
            let (others, taken) = (&rows[longest..], set.taken - longest);
            typical.extend(
                (0..taken).map(|index| others[(index as u128 * others.len() as u128 / taken as u128) as usize]),
            );
        }
        typical
    }
}

/// Longest rows that stand for an epoch whether it takes them or not: later ones do.
const LONGEST: usize = 64;

const SEEDS_APART: u64 = 0x9e37_79b9_7f4a_7c15;

/// Cuts `all` into whole numbers by weights: largest remainders, and no number is 0. `all` must be as many as there are
/// weights, at least.
fn apportioned(all: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| all as f64 * (weight / sum)).collect();
    let mut counts: Vec<usize> = exact.iter().map(|exact| (exact.floor() as usize).max(1)).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| {
        let rest = |index: &usize| exact[*index] - counts[*index] as f64;
        rest(b).total_cmp(&rest(a))
    });
    let given: usize = counts.iter().sum();
    for index in order.iter().cycle().take(all.saturating_sub(given)) {
        counts[*index] += 1;
    }
    // What the smallest have too much is taken from the largest.
    for _ in all..given {
        if let Some(largest) = counts.iter_mut().max() {
            *largest -= 1;
        }
    }
    counts
}

/// Sets whose turn it is among sets with so many turns each: the turns of the first set are 0 to n_1 - 1, and so on.
pub(super) fn turns(counts: &[usize]) -> Vec<u32> {
    let all: usize = counts.iter().sum();
    if counts.len() < 2 {
        return (0..all as u32).collect();
    }
    let first = |index: usize| counts[..index].iter().sum::<usize>();
    let first: Vec<usize> = (0..counts.len()).map(first).collect();
    let slack = 2 * (counts.len() as i128 - 1);
    let mut taken = vec![0_usize; counts.len()];
    let mut turns = Vec::with_capacity(all);
    for position in 0..all {
        // In units of 1 / (slack N) of a row.
        let behind = |index: usize| {
            let due = (position as i128 + 1) * counts[index] as i128;
            slack * (due - taken[index] as i128 * all as i128)
        };
        // A set's next row is due where it would be behind by a row less 1/(2k-2); compared without a division.
        let due = |index: usize| (slack * (taken[index] as i128 + 1) - 1, counts[index] as i128);
        let mut next: Option<usize> = None;
        for index in (0..counts.len()).filter(|index| taken[*index] < counts[*index] && behind(*index) >= all as i128) {
            let is_earlier = |best: usize| {
                let ((mine, of_mine), (its, of_its)) = (due(index), due(best));
                mine * of_its < its * of_mine
            };
            if next.is_none_or(is_earlier) {
                next = Some(index);
            }
        }
        // The theorem says that there is one; the one most behind is right in any case.
        let next = next.or_else(|| (0..counts.len()).max_by_key(|index| behind(*index)));
        let index = next.unwrap_or_default();
        turns.push((first[index] + taken[index]) as u32);
        taken[index] += 1;
    }
    turns
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mixture(sets: &[(usize, f64)]) -> Mixture {
        let mut start = 0;
        let sets: Vec<_> = sets
            .iter()
            .map(|(rows, weight)| {
                let rows = start..start + rows;
                start = rows.end;
                (rows, *weight)
            })
            .collect();
        Mixture::new(sets)
    }

    fn sets() -> impl Strategy<Value = Vec<(usize, f64)>> {
        prop::collection::vec((1_usize..80, 0.01_f64..1.0), 2..6)
    }

    proptest! {
        #[test]
        fn every_beginning_has_the_shares_within_a_row(sets in sets(), epochs in 1_u64..4) {
            let mixture = mixture(&sets);
            let all = mixture.len();
            prop_assert_eq!(all, sets.iter().map(|(rows, _)| rows).sum::<usize>());
            let mut seen = vec![0_usize; sets.len()];
            for position in 0..epochs as usize * all {
                let row = mixture.row_at((position / all) as u64, position % all, RowOrder::File);
                let number = mixture.sets.iter().position(|set| set.rows.contains(&row)).unwrap();
                seen[number] += 1;
                for (set, seen) in mixture.sets.iter().zip(&seen) {
                    let share = (position + 1) as f64 * set.taken as f64 / all as f64;
                    prop_assert!((*seen as f64 - share).abs() < 1.0, "{} of {} after {}", seen, share, position + 1);
                }
            }
        }

        #[test]
        fn an_epoch_has_the_weights_within_a_row(sets in sets()) {
            let mixture = mixture(&sets);
            let sum: f64 = sets.iter().map(|(_, weight)| weight).sum();
            let smallest = sets.iter().map(|(_, weight)| mixture.len() as f64 * weight / sum).fold(f64::INFINITY, f64::min);
            for (set, (_, weight)) in mixture.sets.iter().zip(&sets) {
                let exact = mixture.len() as f64 * weight / sum;
                prop_assert!(set.taken >= 1);
                // Sets that would have no row have one, from the largest.
                prop_assert!(smallest < 1.0 || (set.taken as f64 - exact).abs() < 1.0, "{} of {}", set.taken, exact);
            }
        }

        #[test]
        fn each_set_goes_through_epochs_of_its_own(sets in sets(), seed: u64) {
            let mixture = mixture(&sets);
            let all = mixture.len();
            let order = RowOrder::Shuffled { seed };
            let mut rows: Vec<Vec<usize>> = vec![Vec::new(); sets.len()];
            for position in 0..3 * all {
                let row = mixture.row_at((position / all) as u64, position % all, order);
                let number = mixture.sets.iter().position(|set| set.rows.contains(&row)).unwrap();
                rows[number].push(row);
            }
            for (set, rows) in mixture.sets.iter().zip(&rows) {
                for epoch in rows.chunks_exact(set.rows.len()) {
                    let mut sorted = epoch.to_vec();
                    sorted.sort_unstable();
                    prop_assert_eq!(sorted, set.rows.clone().collect::<Vec<_>>());
                }
            }
        }

        #[test]
        fn sums_of_epochs_are_those_of_their_rows(sets in sets(), seed: u64, epochs in 0_u64..4) {
            let mixture = mixture(&sets);
            let order = RowOrder::Shuffled { seed };
            let rows = (0..epochs).flat_map(|epoch| (0..mixture.len()).map(move |at| (epoch, at)));
            let sum: u64 = rows.map(|(epoch, at)| mixture.row_at(epoch, at, order) as u64).sum();
            prop_assert_eq!(sum, mixture.sum_of_epochs(epochs, order, |row| row as u64));
        }

        #[test]
        fn typical_rows_are_as_many_of_each_set_as_an_epoch_takes(sets in sets()) {
            let mixture = mixture(&sets);
            let mut in_epoch: Vec<usize> = vec![0; sets.len()];
            for row in mixture.typical_rows(|row| row) {
                in_epoch[mixture.sets.iter().position(|set| set.rows.contains(&row)).unwrap()] += 1;
            }
            prop_assert_eq!(in_epoch, mixture.sets.iter().map(|set| set.taken).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seven_to_three_takes_turns() {
        let mixture = mixture(&[(5, 0.7), (5, 0.3)]);
        let turns: Vec<usize> = (0..10).map(|at| mixture.row_at(0, at, RowOrder::File)).collect();
        assert_eq!(turns, [0, 5, 1, 2, 3, 6, 4, 0, 7, 1]);
        assert_eq!(mixture.passes().collect::<Vec<_>>(), [1.4, 0.6]);
        // The second epoch goes on where the first one left each set.
        let turns: Vec<usize> = (0..10).map(|at| mixture.row_at(1, at, RowOrder::File)).collect();
        assert_eq!(turns, [2, 8, 3, 4, 0, 9, 1, 2, 5, 3]);
    }

    #[test]
    fn a_set_of_hardly_any_weight_has_a_row() {
        assert_eq!(apportioned(10, &[1.0, 1e-9, 1e-9]), [8, 1, 1]);
        assert_eq!(apportioned(3, &[5.0, 1.0, 1.0]), [1, 1, 1]);
        assert_eq!(apportioned(10, &[0.5, 0.5]), [5, 5]);
        assert_eq!(apportioned(11, &[0.5, 0.5]).iter().sum::<usize>(), 11);
    }
}
