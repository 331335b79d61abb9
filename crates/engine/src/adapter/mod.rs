//! The adapter: how it starts, and how it is kept on disk in PEFT's layout.
//!
//! [`AdapterPlan`](peft_tune_core::plan::AdapterPlan) says which linear layers get one, and its slots of a
//! [`ParameterLayout`](super::ParameterLayout) get values by [`fill`] or from a PEFT directory by [`SavedAdapter`].

mod config;
mod error;
mod init;
mod per_expert;
mod pissa;
mod saved;

pub use config::PeftConfig;
pub use error::AdapterError;
pub use init::fill;
pub use pissa::{Pissa, fill_pissa};
pub use saved::{SavedAdapter, write};
