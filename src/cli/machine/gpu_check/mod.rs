//! `gpu-check`: is a device right, and how fast is it? For a machine with a GPU and no compiler.

mod args;
mod attention;
mod bench;
mod command;
mod graphs;
mod literature;
mod memory;
mod setting;
mod shapes;

pub(in crate::cli) use args::Args;
pub(in crate::cli) use command::run;
