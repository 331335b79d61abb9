//! `peft-tune infer-bench`: how fast a model answers, with and without adapters.

mod args;
mod command;
mod forms;
mod points_text;
mod prompts;
mod records;

pub(in crate::cli) use args::Args;
pub(in crate::cli) use command::run;
