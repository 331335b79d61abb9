//! The optimizer: one pass over the flat parameter buffers, the learning-rate schedule and gradient clipping.

mod adafactor;
mod adamw;
mod cuda;
mod group;
mod lion;
mod muon;
mod norm;
mod pages;
mod rule;
mod schedule;
mod schedule_free;
mod sgd;
mod states_8bit;
mod states_f32;
mod update;

pub(super) use cuda::Clipping;
pub(super) use norm::unscale;
pub use norm::{Norm, clip, dot, global_norm, norm_and_clip};
pub use schedule::{learning_rate, schedule_free_rate};
pub use update::{Optimizer, OptimizerError};
