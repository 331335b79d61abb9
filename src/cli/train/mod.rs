//! `peft-tune train`: real fine-tunings.

mod command;
mod devices;
mod other_ranks;
mod together;
pub(super) mod watch;

pub(super) use command::{Args, run};
