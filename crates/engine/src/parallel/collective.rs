//! The seam between the trainer and whatever connects the devices of one training.

use std::fmt;

use candle_core::Tensor;

/// Exchanges that the ranks of one training make together. Every rank calls the same methods in the same order, with
/// values of the same length; each call returns once all have made it.
pub trait Collective: fmt::Debug + Send + Sync {
    /// Place of this process among the ranks, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Replaces the elements of a contiguous F32 tensor by their sums over all ranks, the same bits on every rank.
    ///
    /// # Errors
    /// A rank that is gone or does not arrive in time; a tensor that cannot be reached.
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), CollectiveError>;

    /// Replaces numbers by their sums over all ranks.
    fn sum_numbers(&self, numbers: &mut [f64]) -> Result<(), CollectiveError>;

    /// Replaces the elements of a contiguous F32 tensor by those of rank 0.
    fn broadcast(&self, tensor: &Tensor) -> Result<(), CollectiveError>;

    /// Fills `all`, contiguous, with the elements of every rank's `own`, one rank behind the other; the same dtype (U8, BF16, F16 or
    /// F32) and as many elements on every rank, and nothing is rounded.
    ///
    /// # Errors
    /// A rank that is gone, does not arrive in time, or gives another number of bytes; tensors that do not go together.
    fn all_gather(&self, own: &Tensor, all: &Tensor) -> Result<(), CollectiveError>;

    /// Whether a gather may run on a thread of its own while this one computes. All calls must still be made one after the other, in
    /// the same order on every rank.
    fn gathers_beside(&self) -> bool {
        false
    }

    /// Waits for all ranks.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Replaces each of the numbers by the highest that any rank gave.
    fn highest(&self, numbers: &mut [f64]) -> Result<(), CollectiveError> {
        if self.ranks() == 1 || numbers.is_empty() {
            return Ok(());
        }
        let mut all = vec![0.0; numbers.len() * self.ranks()];
        let own = self.rank() * numbers.len();
        all[own..own + numbers.len()].copy_from_slice(numbers);
        self.sum_numbers(&mut all)?;
        for rank in all.chunks(numbers.len()) {
            for (number, given) in numbers.iter_mut().zip(rank) {
                *number = number.max(*given);
            }
        }
        Ok(())
    }
}

/// Devices that no longer work together: the training cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    #[error("rank {rank} of {ranks} is gone, and the others cannot continue without it")]
    Gone { rank: usize, ranks: usize },
    #[error(
        "rank {rank} of {ranks} has not arrived within {waited_s:.0} s; it hangs, or its device is much slower than the others"
    )]
    Late { rank: usize, ranks: usize, waited_s: f64 },
    #[error(
        "rank {rank} of {ranks} gave {got} bytes of weights where rank 0 gave {expected}; all ranks must run the same recipe, model and \
         version"
    )]
    Size {
        rank: usize,
        ranks: usize,
        got: u64,
        expected: u64,
    },
    #[error("rank {rank} of {ranks} could not do its part; its own words in the log say why")]
    Failed { rank: usize, ranks: usize },
    #[error("cannot share memory between {ranks} ranks: {source}; check the limits on locked and shared memory")]
    Memory { ranks: usize, source: std::io::Error },
    #[error("rank {rank} cannot be one of {ranks}; `devices` goes from 1 to {most}")]
    Ranks { rank: usize, ranks: usize, most: usize },
    #[error("ranks of another training, or of another version, use this memory")]
    Foreign,
    #[error("NCCL failed: {message}; `NCCL_DEBUG=INFO` shows why")]
    Library { message: String },
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
