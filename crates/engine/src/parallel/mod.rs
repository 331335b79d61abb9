//! Several devices on one step: each computes its share of the micro-batches, and the gradients are added up.
//!
//! The trainers of all devices see the whole global batch, so that each knows the number of target tokens that the loss is
//! divided by and the place of every micro-batch, on which its dropout masks depend. Rank k of n computes micro-batches
//! k, k + n, k + 2n ...; then one sum over all ranks makes the gradients of the global batch, the same bits on every
//! rank, and every rank takes the same optimizer step. The result is that of one device with the same global batch, but
//! for the order of that last sum.

mod alone;
mod collective;
mod meeting;
#[cfg(feature = "nccl")]
mod nccl;
mod segment;
mod shared_memory;

/// Atomics that meetings are made of.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

pub use alone::Alone;
pub use collective::{Collective, CollectiveError};
#[cfg(feature = "nccl")]
pub use nccl::Nccl;
pub use segment::Segment;
pub use shared_memory::SharedMemory;
