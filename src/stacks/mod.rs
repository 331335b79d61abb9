//! Settings files of other training tools, read for what they would need there.

mod config;
mod error;
mod keys;
mod script;
mod tools;

pub use config::{StackConfig, parse, read};
pub use error::StackFileError;
