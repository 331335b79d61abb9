//! Other programs that train: one row and one folder each, and what their folders share.

mod axolotl;
mod llamafactory;
mod peft;
mod row;
mod tool;
mod torchtune;
mod trl;
mod unsloth;

pub use tool::{Tool, UnknownTool};
