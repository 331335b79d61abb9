//! Parts of a store that have the tables of trials.

pub(super) mod evaluations;
pub(super) mod held_out_losses;
pub(super) mod history;
pub(super) mod inheritance;
pub(super) mod kernel_forms;
pub(super) mod lost_attempts;
pub(super) mod measurements;
pub(super) mod precision_decisions;
pub(super) mod predictions;
pub(super) mod proposals;
pub(super) mod repeats;
pub(super) mod reports;
pub(super) mod state;
pub(super) mod step_buffer;
pub(super) mod steps;
pub(super) mod stops;
pub(super) mod trial_details;
mod trial_id;
pub(super) mod trials;

pub use held_out_losses::HeldOutRecord;
pub use history::{TrialRun, TrialTimes};
pub use inheritance::{InheritedValue, Variants};
pub use kernel_forms::{KernelsOfTrials, TrialKernels};
pub use lost_attempts::LostAttempt;
pub use measurements::Measurements;
pub use precision_decisions::PrecisionRecord;
pub use predictions::PredictionRecord;
pub use repeats::LONGER_DIVERGED_STEP;
pub use trial_details::{PhaseSteps, TrialDetail};
