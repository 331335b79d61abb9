//! `peft-tune plan`: what settings would cost, here and in other tools.

mod args;
mod baseline_setting;
mod command;
mod gpus;
mod gpus_text;
mod own_engine;
mod ranked_device;
mod stack;
mod stack_args;
mod stack_text;
mod step;
mod step_args;
mod step_text;
mod text;
mod unpredicted;

pub(super) use args::Args;
pub(super) use command::run;
pub(super) use stack::{Expectation, device_of, expectation};
