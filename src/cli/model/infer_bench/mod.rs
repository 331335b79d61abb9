//! `peft-tune infer-bench`: how fast a model answers, with and without adapters.

mod args;
mod command;
mod forms;
mod prompts;
mod records;
mod shown;

pub(in crate::cli) use args::Args;
pub(in crate::cli) use command::run;
