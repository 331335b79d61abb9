//! The optimizer: one pass over the flat parameter buffers, the learning-rate schedule and gradient clipping.

mod adamw;
mod flat;
mod group;
mod norm;
mod rule;
mod schedule;
mod sgd;
mod update;

pub use norm::{clip, global_norm};
pub use schedule::learning_rate;
pub use update::{Optimizer, OptimizerError};
