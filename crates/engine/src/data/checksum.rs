//! A fast sum over bytes that damage does not survive; no protection against ill will, which needs none here.

/// The sum so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checksum {
    sum: u64,
    /// Bytes that do not fill a word yet.
    rest: [u8; 8],
    count: usize,
}

impl Checksum {
    /// The sum of all of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> u64 {
        let mut checksum = Self::default();
        checksum.add(bytes);
        checksum.value()
    }

    /// Adds the bytes that follow. How they are divided does not matter.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        if self.count > 0 {
            let (head, tail) = bytes.split_at(bytes.len().min(8 - self.count));
            self.rest[self.count..self.count + head.len()].copy_from_slice(head);
            self.count += head.len();
            bytes = tail;
            if self.count < 8 {
                return;
            }
            self.mix(u64::from_le_bytes(self.rest));
            self.count = 0;
        }
        let words = bytes.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            self.mix(u64::from_le_bytes(word.try_into().expect("a chunk of eight bytes")));
        }
        self.rest[..rest.len()].copy_from_slice(rest);
        self.count = rest.len();
    }

    /// The sum.
    pub(super) fn value(mut self) -> u64 {
        self.rest[self.count..].fill(0);
        self.mix(u64::from_le_bytes(self.rest));
        self.mix(self.count as u64);
        self.sum
    }

    fn mix(&mut self, word: u64) {
        self.sum = (self.sum.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_division_does_not_matter_and_each_bit_does(
            bytes in prop::collection::vec(any::<u8>(), 1..60),
            cuts in prop::collection::vec(0_usize..60, 0..5),
            damaged in 0_usize..60,
            bit in 0_u32..8,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut checksum = Checksum::default();
            let mut start = 0;
            for end in cuts.into_iter().chain([bytes.len()]) {
                checksum.add(&bytes[start..end]);
                start = end;
            }
            prop_assert_eq!(checksum.value(), Checksum::of(&bytes));
            let mut other = bytes.clone();
            other[damaged % bytes.len()] ^= 1 << bit;
            prop_assert_ne!(Checksum::of(&other), Checksum::of(&bytes));
        }
    }
}
