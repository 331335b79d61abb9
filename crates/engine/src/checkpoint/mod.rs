//! Checkpoints on disk: safetensors files, the index over their shards, and the forms of quantized weights.

mod error;
mod floats;
pub(crate) mod header;
mod packed;
mod quantized;
mod weights;

pub use error::WeightsError;
pub(crate) use packed::PackedError;
pub use weights::Checkpoint;
