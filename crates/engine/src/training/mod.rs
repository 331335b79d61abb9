//! The trainer: passes over micro-batches, the update, and what it tells of each step.

mod loss_kept;
mod loss_scale;
mod passes;
mod precision_switch;
mod shares;
mod spread;
mod step;
mod stopwatch;
mod trained_set;
mod trainer;
mod update_pass;

pub use loss_kept::LossKept;
pub use loss_scale::OverflowWatch;
pub use precision_switch::{PrecisionCause, PrecisionDecision};
pub use step::{Control, Evaluation, StepEvent, StepObserver, StepSeconds};
pub(crate) use trained_set::TrainedSet;
pub use trainer::{SavedBytes, Trainer, TrainerPosition};
