//! Other programs that train: one row and one folder each, and what their folders share.
//!
//! Built for browsers too, where no script is read.

mod axolotl;
mod called;
pub mod export;
pub mod import;
mod keys;
mod known_keys;
mod llamafactory;
mod optimizer_names;
mod peft;
pub mod plan;
mod row;
mod table;
mod tool;
mod torchtune;
mod training_arguments;
mod transformers;
mod trl;
mod unsloth;

pub(crate) use called::optimizer_called;
pub use called::setting_called;
pub use keys::{ToolKeys, Word};
pub use table::UnknownTool;
pub use tool::Tool;
pub use transformers::{is_of_bitsandbytes, is_of_schedulefree};
