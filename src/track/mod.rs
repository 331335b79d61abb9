//! A study as experiment trackers have it, kept up to date while its search runs: MLflow, TensorBoard and others.
//!
//! A [`Follower`] looks at the results database now and then and hands what changed to each [`Tracker`]. A tracker renders a
//! trial whole and compares that with what is there, so that nothing depends on what this process has done before: after a
//! kill, what is there is continued.

mod append;
mod delivery;
mod error;
mod follow;
mod mlflow;
mod open;
mod optuna;
mod param_json;
mod recommended;
mod study;
mod tensorboard;
mod tracker;
mod trackio;
mod wandb;

pub use append::continue_file;
pub use delivery::{Missing, Told};
pub use error::TrackError;
pub use follow::Follower;
pub use mlflow::mlflow_run;
pub use recommended::Recommended;
pub use study::{TrackedStudy, TrackedTrial};
pub use tensorboard::trial_file;
pub use tracker::Tracker;
