//! The frozen base model: its weights in the storage of a precision.

mod base_model;
mod sharded;
mod source;
mod sparsity;
mod stacked;
mod weight;

pub use base_model::BaseModel;
pub(crate) use base_model::{BaseLoader, CONFIG};
pub use sharded::RankShare;
pub(crate) use sharded::ShardedLayers;
pub use source::BaseSource;
pub(crate) use sparsity::FILE as SPARSITY_FILE;
pub use sparsity::Sparsity;
pub(crate) use stacked::{Stacked, mxfp4_owner};
pub(crate) use weight::{Weight, WeightKind, compute_dtype};
