//! The one rank of a training on one device: sums over it are what they are.

use candle_core::Tensor;

use super::{Collective, CollectiveError};

/// One device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn all_reduce_sum(&self, _: &Tensor) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn sum_numbers(&self, _: &mut [f64]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&self, _: &Tensor) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&self, own: &Tensor, all: &Tensor) -> Result<(), CollectiveError> {
        Ok(all.slice_set(own, 0, 0)?)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }
}
