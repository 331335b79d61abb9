//! What writers of settings files share: the file as it grows, and parts that several tools have.

mod deepspeed;
pub(super) mod draft;
mod error;
pub(super) mod hf_trainer;
mod input;
mod misreading;
pub(super) mod modules;
pub(super) mod reading;
mod rendered;
mod row;
pub(super) mod rows;
pub(super) mod step_counts;
mod target_yaml;
mod tool_file;

pub use deepspeed::DEEPSPEED_FILE;
pub use error::RenderError;
pub use input::{AnswerMarks, ExportInput, Exported, Known, Warning};
pub use reading::TokenFiles;
pub use rendered::Rendered;
pub(super) use row::ExportRow;
