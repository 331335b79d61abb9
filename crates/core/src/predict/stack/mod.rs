//! Needs of a setting in another stack: memory from a step of that stack, op by op, and its time from the same step.
//!
//! A stack is plain data (`behaviour`), which its tool's row fills in. A model and a setting give the ops of a step (`layer`, `head`), each with what its
//! derivative saves; a tape of these (`tape`) says which tensors exist when, and a copy of PyTorch's caching allocator
//! (`heap`) what that takes of the device.

mod behaviour;
mod choices;
mod comparison;
mod device;
mod dora;
mod error;
mod head;
mod heap;
mod layer;
mod limits;
mod memory;
mod model;
mod of_recipe;
mod own;
mod predictor;
mod role;
mod scaled;
mod setting;
mod shape;
mod shape_of_family;
mod shape_range;
mod step_seconds;
mod stored_weights;
mod tape;
mod weight_form;

pub use behaviour::{
    AttentionForm, HostUpdates, LossForm, Number, OwnLayers, Raised, Recompute, StackBehaviour, StackRefusal, Unable,
};
pub use choices::{Dtypes, StackChoices};
pub use comparison::Comparison;
pub use device::{Generation, HOST, StackDevice};
pub use error::StackError;
pub use heap::{KINDS, Kind};
pub use limits::{Lever, Limits, largest_micro_batch, levers, limits, made_to_fit};
pub use memory::{EVALUATION, PhasePeak, StackMemory};
pub use of_recipe::{deepspeed_refuses, optimizer_form, takes_fsdp};
pub use own::OwnEngine;
pub use predictor::{Fit, StackPrediction, Verdict, outside_bytes, predict};
pub use role::{ROLES, Role};
pub use scaled::scaling;
pub use setting::{OptimizerForm, Sharing, StackSetting, Trains};
pub use shape::{ExpertShape, ModelShape};
pub use stored_weights::StoredWeights;
pub use weight_form::WeightForm;
