//! The adapter: which linear layers get one, how it starts, and how it is kept on disk in PEFT's layout.
//!
//! `BaseShape` (what the base model has) + `AdapterSettings` -> [`AdapterPlan`] -> slots of a
//! [`ParameterLayout`](super::ParameterLayout) -> values by [`fill`] or from a PEFT directory by [`SavedAdapter`].

mod config;
mod error;
mod init;
mod pattern;
mod pissa;
mod plan;
mod saved;
mod shape;
mod target;
mod whole;

pub use config::PeftConfig;
pub use error::AdapterError;
pub use init::fill;
pub use pissa::{Pissa, fill_pissa};
pub use plan::{AdaptedLinear, AdapterPlan, AdapterSlots, LinearSlots};
pub use saved::{SavedAdapter, write};
pub use shape::{BaseShape, LinearShape, ParameterShape};
pub use whole::WholeParameter;
