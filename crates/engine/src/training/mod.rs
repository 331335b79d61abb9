//! The trainer: passes over micro-batches, the update, and what it tells of each step.

mod checks;
mod compute_path;
mod divergence;
mod evaluation;
mod host_update;
mod logits;
mod loss_kept;
mod loss_scale;
mod passes;
mod precision_switch;
mod row_watch;
mod saved_bytes;
mod shares;
mod spike;
mod spread;
mod step;
mod step_passes;
mod stopwatch;
mod tally;
mod together;
mod trained_set;
mod trainer;
mod trainer_position;
mod update_pass;

pub use divergence::Divergence;
pub use loss_kept::LossKept;
pub use loss_scale::OverflowWatch;
pub use precision_switch::{PrecisionCause, PrecisionDecision};
pub use row_watch::{EvaluatedRows, RowLoss, RowWatch};
pub use saved_bytes::SavedBytes;
pub use spike::{BackOff, SpikeAnswer, SpikeReport, SpikeRow, SpikeStep};
pub use step::{Control, Evaluation, HeldOutReward, StepEvent, StepObserver, StepSeconds};
pub use together::Together;
pub(crate) use trained_set::TrainedSet;
pub use trainer::Trainer;
pub use trainer_position::TrainerPosition;
