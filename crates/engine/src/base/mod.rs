//! The frozen base model: its weights in the storage of a precision.

mod base_model;
mod source;
mod stacked;
mod weight;

pub use base_model::BaseModel;
pub(crate) use base_model::CONFIG;
pub use source::BaseSource;
pub(crate) use stacked::{Stacked, mxfp4_owner};
pub(crate) use weight::{Weight, WeightKind, compute_dtype};
