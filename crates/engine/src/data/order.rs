//! Random orders that need no memory: a permutation of 0..n computed position by position.
//!
//! A Feistel network over the next even number of bits permutes at least n values; a value outside 0..n is sent
//! through again until it falls inside (cycle walking, Black and Rogaway 2002). The order is a function of the seed,
//! the epoch and n alone: it is the same on every machine and in every version.

/// The order in which an epoch takes the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Order of the files.
    File,
    /// Order that is shuffled again in each epoch.
    Shuffled { seed: u64 },
}

/// A permutation of `0..length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permutation {
    length: u64,
    half_bits: u32,
    key: u64,
}

const ROUNDS: u64 = 8;

impl Permutation {
    /// The order of `length` things in round `round` of the stream that `seed` begins.
    pub(super) fn new(seed: u64, round: u64, length: usize) -> Self {
        let length = length as u64;
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        Self {
            length,
            half_bits: bits.div_ceil(2).max(1),
            key: mix(mix(seed).wrapping_add(round)),
        }
    }

    /// The key of this order, to derive others from.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Index that stands at `position`, which must be below the length.
    pub(super) fn at(&self, position: usize) -> usize {
        let mut value = position as u64;
        loop {
            value = self.scramble(value);
            if value < self.length {
                return value as usize;
            }
        }
    }

    /// One pass through the network.
    fn scramble(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let noise = mix(self.key.wrapping_add(round << 56).wrapping_add(right)) & mask;
            (left, right) = (right, left ^ noise);
        }
        (left << self.half_bits) | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014) after one step of its counter.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(seed: u64, round: u64, length: usize) -> Vec<usize> {
        let permutation = Permutation::new(seed, round, length);
        (0..length).map(|position| permutation.at(position)).collect()
    }

    proptest! {
        #[test]
        fn every_thing_has_one_place(seed: u64, round in 0_u64..100, length in 1_usize..600) {
            let mut order = order(seed, round, length);
            order.sort_unstable();
            prop_assert_eq!(order, (0..length).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // Computed by the same formulas in Python.
        assert_eq!(order(0, 0, 10), [5, 9, 8, 2, 1, 3, 6, 0, 4, 7]);
        assert_eq!(order(0, 1, 10), [8, 7, 5, 9, 4, 6, 0, 1, 2, 3]);
        assert_eq!(order(1, 0, 10), [5, 9, 2, 8, 4, 6, 1, 0, 3, 7]);
    }

    #[test]
    fn every_place_gets_every_thing_about_equally_often() {
        let (length, rounds) = (7, 14_000);
        let mut counts = vec![[0_u32; 7]; length];
        for round in 0..rounds {
            for (position, thing) in order(3, round, length).into_iter().enumerate() {
                counts[position][thing] += 1;
            }
        }
        // Binomial with mean 2000 and deviation 41: five deviations.
        for count in counts.iter().flatten() {
            assert!(count.abs_diff(2000) < 210, "{counts:?}");
        }
    }
}
