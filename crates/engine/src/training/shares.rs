//! The shares of a global batch that are computed here. Of several ranks each has one. A device on its own has all of those
//! that the recipe's `devices` name, and adds them up one after the other, in the order in which ranks do: the bits are the same.

use candle_core::{Result, Tensor};

use crate::data::MicroBatch;
use crate::parallel::Collective;
use peft_tune_kernels::flat::{with_f32, with_f32_mut};

/// Every `of`-th micro-batch, from `number` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    number: usize,
    of: usize,
}

impl Share {
    /// Shares of this process, in the order of their sum.
    pub(super) fn here(collective: &dyn Collective, devices: usize) -> Vec<Self> {
        let (ranks, devices) = (collective.ranks(), devices.max(1));
        match ranks {
            1 => (0..devices).map(|number| Self { number, of: devices }).collect(),
            of => vec![Self {
                number: collective.rank(),
                of,
            }],
        }
    }

    /// Shares of which it is one.
    pub(super) fn count(self) -> usize {
        self.of
    }

    /// Whether the micro-batch of this number is one of its.
    pub(super) fn has(self, index: usize) -> bool {
        index % self.of == self.number
    }

    /// How many micro-batches fewer of so many it has than the one that has most.
    pub(super) fn idle(self, micro_batches: usize) -> usize {
        let has = micro_batches.saturating_sub(self.number).div_ceil(self.of);
        micro_batches.div_ceil(self.of) - has
    }

    /// Micro-batches of the share, each behind the number of tokens that come before it in the global batch.
    pub(super) fn of(self, global_batch: &[MicroBatch]) -> impl Iterator<Item = (u64, &MicroBatch)> {
        let mut tokens = 0;
        let with_place = global_batch.iter().enumerate().map(move |(index, batch)| {
            let first_token = tokens;
            tokens += batch.tokens() as u64;
            (index, (first_token, batch))
        });
        with_place.filter_map(move |(index, batch)| self.has(index).then_some(batch))
    }
}

/// Adds what the shares before gave to the gradients of one, both flat and in F32.
pub(super) fn add_before(gradients: &Tensor, before: &Tensor) -> Result<()> {
    if !gradients.device().is_cpu() {
        let sum = (before + gradients)?;
        return gradients.slice_set(&sum, 0, 0);
    }
    with_f32(before, |before| {
        with_f32_mut(gradients, |gradients| {
            gradients
                .iter_mut()
                .zip(before)
                .for_each(|(sum, before)| *sum += before);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Document;
    use crate::parallel::Alone;

    #[test]
    fn shares_of_one_device_are_those_of_as_many_ranks() {
        let batch = |tokens: usize| {
            MicroBatch::from_documents(&[Document {
                input_ids: vec![1; tokens],
                labels: vec![1; tokens],
            }])
        };
        let batches = [3, 5, 2, 4].map(batch);
        let found = |share: Share| -> Vec<(u64, usize)> {
            share
                .of(&batches)
                .map(|(first, batch)| (first, batch.tokens()))
                .collect()
        };
        let idle: Vec<usize> = (0..3).map(|number| Share { number, of: 3 }.idle(4)).collect();
        assert_eq!(idle, [0, 1, 1]);
        let shares: Vec<_> = Share::here(&Alone, 2).into_iter().map(found).collect();
        assert_eq!(shares, [vec![(0, 3), (8, 2)], vec![(3, 5), (10, 4)]]);
        assert_eq!(Share::here(&Alone, 1).into_iter().flat_map(found).count(), 4);
    }
}
