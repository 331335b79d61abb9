//! What readers of settings files share: the file's keys, the recipe and what stands beside it as they grow, and
//! parts that several tools have.

pub(super) mod adapter;
pub(super) mod adapter_start;
pub(super) mod choices;
mod command_line;
pub(super) mod data;
mod data_sets;
mod error;
mod file_keys;
mod foreign;
mod imported;
mod interpolation;
mod later;
mod matched_targets;
mod one_line;
mod passed_over;
pub(super) mod precision;
pub(super) mod preference;
mod read;
mod reader;
mod row;
mod script;
mod script_options;
mod script_rows;
mod settings_file;
mod sharing;
mod shell;
pub(super) mod tables;
mod task;
mod task_row;
mod task_table;
mod told;
pub(super) mod trainer;
mod uncut;

pub use error::StackFileError;
pub(super) use file_keys::Keys;
pub use imported::{AskedLater, Imported, WarmupCount};
pub(super) use one_line::on_one_line;
pub use read::{parse_changed, parse_recipe, read_recipe};
pub(super) use reader::Reader;
pub(super) use row::{FileKind, ImportRow};
pub(super) use script::{Library, Script};
pub(super) use settings_file::parsed;
pub use settings_file::text_of;
pub use uncut::take_length;
