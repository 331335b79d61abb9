//! Settings files of other training tools, read for what they would need there, and as recipes to search around.

mod config;
mod error;
mod import;
mod keys;
mod script;
mod tools;

pub use config::{StackConfig, parse, read};
pub use error::StackFileError;
pub use import::{Imported, import, parse as parse_recipe};
