//! `peft-tune train`: real fine-tunings.

mod args;
mod command;
mod devices;
pub(super) mod opening;
mod other_ranks;
mod outcome_text;
mod output_folder;
mod spike_text;
mod together;
pub(super) mod watch;

pub(super) use args::Args;
pub(super) use command::run;
