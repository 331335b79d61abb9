//! The frozen base model: its weights in the storage of a precision.

mod base_loader;
mod base_model;
mod codes;
mod device_support;
mod quantized_rows;
mod random_model;
mod sharded;
mod source;
mod sparsity;
mod stacked;
mod unread_tensors;
mod weight;
mod weight_kinds;
mod weight_sink;

pub(crate) use base_loader::{BaseLoader, CONFIG};
pub use base_model::BaseModel;
pub use sharded::RankShare;
pub(crate) use sharded::ShardedLayers;
pub use source::BaseSource;
pub(crate) use sparsity::FILE as SPARSITY_FILE;
pub use sparsity::Sparsity;
pub(crate) use stacked::{Stacked, mxfp4_owner};
pub(crate) use weight::Weight;
pub(crate) use weight_kinds::{WeightKind, compute_dtype};
