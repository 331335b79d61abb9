//! `peft-tune explain`: what a study found, in words.

mod command;
mod explanation;
pub(in crate::cli) mod failures;
pub(in crate::cli) mod json;
pub(in crate::cli) mod text;

pub(super) use command::{Args, run};
