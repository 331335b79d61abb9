//! Checkpoints on disk: safetensors files and the index over their shards.

pub(crate) mod header;
mod weights;

pub use weights::Checkpoint;
