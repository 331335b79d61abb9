//! Checkpoints on disk: safetensors files and the index over their shards.

mod error;
pub(crate) mod header;
mod weights;

pub use error::WeightsError;
pub use weights::Checkpoint;
