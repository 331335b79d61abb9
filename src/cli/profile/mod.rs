//! One setting in depth: `profile` and `tune-step`.

mod args;
mod bench;
mod ceilings;
mod command;
mod compared_rate;
pub(super) mod read;
mod record;
pub(super) mod source;
mod trl;
pub(super) mod tune_step;

pub(super) use args::Args;
pub(super) use command::run;
