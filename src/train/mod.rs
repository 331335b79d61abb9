//! The training engine: base model, adapters, data path, forward, backward and optimizer step.
//!
//! It knows a [`Recipe`](crate::recipe::Recipe) and nothing of studies, search or storage.

pub mod adapter;
mod base;
pub mod data;
pub mod device;
mod error;
pub mod hub;
mod loss_scale;
mod merge;
mod model;
pub mod ops;
pub mod optimizer;
mod parameters;
pub mod quant;
mod step;
mod stopwatch;
pub mod tokenizer;
mod trained_set;
mod trainer;
mod weight;
mod weights;

pub use base::BaseModel;
pub use error::{DeviceError, TrainError, WeightsError};
pub use merge::write_checkpoint;
pub use parameters::{ParameterKind, ParameterLayout, ParameterSlot, Parameters};
pub use step::{Control, Evaluation, StepEvent, StepObserver, StepSeconds};
pub use trainer::{SavedBytes, Trainer};
pub use weights::Checkpoint;
