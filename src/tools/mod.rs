//! Other programs that train: one row and one folder each, and what their folders share.

mod axolotl;
mod keys;
mod llamafactory;
mod peft;
mod row;
mod tool;
mod torchtune;
mod transformers;
mod trl;
mod unsloth;

pub(crate) use keys::{ToolKeys, Word};
pub use keys::{optimizer_called, setting_called};
pub use tool::{Tool, UnknownTool};
pub(crate) use torchtune::TorchtuneFamily;
pub(crate) use transformers::optimizer_name;
