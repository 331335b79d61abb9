//! `peft-tune infer-bench`: how fast a model answers, with and without adapters.

mod args;
mod command;
mod drawing;
mod forms;
mod points_text;
mod prompts;
mod records;
mod served;

pub(in crate::cli) use args::Args;
pub(in crate::cli) use command::run;
