//! The training engine: base model, adapters, data path, forward, backward and optimizer step.
//!
//! It knows a [`Recipe`](crate::recipe::Recipe) and nothing of studies, search or storage.

pub mod adapter;
pub mod data;
pub mod optimizer;
mod parameters;
pub mod quant;
mod step;

pub use parameters::{ParameterKind, ParameterLayout, ParameterSlot, Parameters};
pub use step::{Control, Evaluation, StepEvent, StepObserver, StepSeconds};
