//! `peft-tune init`: a study file for one model, one data set and one memory limit.

mod args;
mod base_model;
mod chat;
mod columns;
mod command;
mod count_tokens;
pub(super) mod found_here;
mod from_config;
mod questions;
mod study_file;

pub(super) use args::Args;
pub(super) use command::run;
