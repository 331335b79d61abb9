//! `peft-tune mcp`: commands of this program as tools for agents.

mod child;
mod command;
mod confines;
mod tools;

pub(super) use command::{Args, run};
