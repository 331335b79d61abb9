//! Recipe -> other tools' files.

mod error;
mod format;
mod peft;
mod recipe;
mod target_yaml;
mod trl;
mod write;

pub use error::ExportError;
pub use format::{ExportFormat, ExportInput, Exported, Warning};
pub use write::write;
