//! The training engine: base model, adapters, data path, forward, backward and optimizer step.
//!
//! It knows a [`Recipe`](crate::recipe::Recipe) and nothing of studies, search or storage.

pub mod adapter;
mod base;
mod base_source;
pub mod check;
pub mod data;
mod decoding;
pub mod device;
mod error;
mod generate;
mod gpu;
mod header;
pub mod hub;
mod loss_kept;
mod loss_scale;
mod merge;
mod model;
mod model_directory;
pub mod ops;
pub mod optimizer;
pub mod parallel;
mod parameters;
mod passes;
pub mod quant;
pub mod run;
pub mod span;
mod step;
mod stopwatch;
mod tensor_file;
pub mod tokenizer;
mod trained_set;
mod trainer;
mod update_pass;
mod weight;
mod weights;
mod whole_file;

pub use crate::plan::{ParameterKind, ParameterLayout, ParameterSlot};
pub use base::BaseModel;
pub use base_source::BaseSource;
pub use decoding::Decoding;
pub use error::{DeviceError, TrainError, WeightsError};
pub use generate::{Generated, GenerationSettings, Generator, TextEnd};
pub use loss_kept::LossKept;
pub use loss_scale::OverflowWatch;
pub use merge::{MergedModel, write_checkpoint};
pub use model_directory::{ModelDirectory, WrittenDtype};
pub use parameters::Parameters;
pub use step::{Control, Evaluation, StepEvent, StepObserver, StepSeconds};
pub use trainer::{SavedBytes, Trainer, TrainerPosition};
pub(crate) use weight::Weight;
pub use weights::Checkpoint;
pub(crate) use whole_file::write_whole_with;
