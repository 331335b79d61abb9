//! `peft-tune export`: a trial or a whole study as files of other tools, and the files of trials that they run.

mod args;
mod cached_rows;
mod chosen_trials;
mod command;
mod installed;
mod preference_rows;
mod receipt;
mod receipt_args;
mod row_files;
mod rows;
mod saved_dataset;
mod study;
mod tensorboard;
mod token_row;
mod token_rows;
mod tool_needs;
mod tool_python;
pub(super) mod trial_files;

pub(super) use args::{Args, Format, Preference};
pub(super) use command::run;
