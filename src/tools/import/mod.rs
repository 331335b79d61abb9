//! What readers of settings files share: the file's keys, the recipe and what stands beside it as they grow, and
//! parts that several tools have.

pub(super) mod adapter;
pub(super) mod choices;
pub(super) mod data;
mod error;
mod file_keys;
mod foreign;
mod imported;
mod passed_over;
pub(super) mod precision;
mod reader;
mod row;
pub(super) mod script;
mod settings_file;
pub(super) mod tables;
mod told;
pub(super) mod trainer;

pub use error::StackFileError;
pub(super) use file_keys::Keys;
pub use imported::{Imported, parse_recipe, read_recipe};
pub(super) use reader::Reader;
pub(super) use row::{FileKind, ImportRow};
pub(super) use settings_file::{is_script, parsed, text_of};
