//! `peft-tune export`: a trial or a whole study as files of other tools.

mod args;
mod choose;
mod command;
mod installed;
mod need;
mod rows;
mod saved_dataset;
mod study;
mod tensorboard;
mod token_row;
mod token_rows;

pub(super) use args::{Args, Format, Preference};
pub(super) use command::run;
