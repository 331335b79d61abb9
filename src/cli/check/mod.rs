//! `peft-tune check`: a few steps of one recipe in two engines, from one adapter on the same rows, and whether they agree.

mod args;
mod checked_file;
mod command;
mod comparison;
mod setting;
mod text;

pub(in crate::cli) use args::Args;
pub(in crate::cli) use command::run;
