//! A whole fine-tuning: steps, evaluations, checkpoints, resuming, and the trained adapter or model at the end.
//!
//! The output folder:
//!
//! | name | what |
//! |---|---|
//! | `run.json` | what is trained: the recipe, the data's fingerprint, the number of steps |
//! | `checkpoints/step-00000020/` | everything that step 21 depends on; see `checkpoint.rs` |
//! | `best/` | the adapter (or model) with the lowest held-out loss, where there are several evaluations |
//! | `adapter_config.json`, `adapter_model.safetensors` | the trained adapter in PEFT's layout; a whole model directory without an adapter |
//! | `spikes.jsonl` | what was found of each spike and divergence, one a line |
//! | `result.json` | how the training ended; written last |
//!
//! In float32 a training that was stopped and resumed ends in the same bits as one that was not: the values, the
//! optimizer's state and the position are restored exactly, and the data of a step depends on the seed and the step alone.
//!
//! Several trainings on one base share the passes over its weights in a [`RunGroup`]; each keeps its folder, and ends as it would alone.
//!
//! On several devices rank 0 has a [`TrainingRun`], which decides, tells and writes; the others have a [`FollowingRun`] each.

mod checkpoint;
mod error;
mod folder;
mod following;
mod identity;
mod next;
mod outcome;
mod settings;
mod spike_answer;
mod spike_cause;
mod spike_rows;
mod spike_watch;
mod together;
mod training;
mod update_sample;
mod whole_folder;

pub use error::RunError;
pub use folder::latest_checkpoint;
pub use following::FollowingRun;
pub use outcome::{Beside, BestEvaluation, Ending, Outcome, RunProgress};
pub use settings::{OnSpike, RunInputs, RunSettings, Start};
pub use together::{Ended, RunGroup};
pub use training::{Opened, TrainingRun};
