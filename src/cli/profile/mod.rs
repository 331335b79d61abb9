//! One setting in depth: `profile` and `tune-step`.

mod bench;
mod ceilings;
mod command;
mod record;
pub(super) mod source;
pub(super) mod stored;
mod trl;
pub(super) mod tune_step;

pub(super) use command::{Args, run};
