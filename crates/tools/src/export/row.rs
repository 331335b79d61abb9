//! [`ExportRow`]: how a tool's file is written.

use std::path::Path;

use super::reading::Reading;
use super::{ExportInput, RenderError, Rendered};
use peft_tune_core::recipe::TrainerKind;

/// What is to be known of the file that a tool is started with.
pub(crate) struct ExportRow {
    /// One line of help.
    pub about: &'static str,
    pub file_name: &'static str,
    /// Trainers beside supervised fine-tuning, each with the file that it is started with.
    pub other_trainers: &'static [(TrainerKind, &'static str)],
    /// How the tool reads rows; `None` where the file names none.
    pub reading: Option<Reading>,
    /// How the tool shares weights out, where its file has no key for it; `None` where the file has one, or says nothing of devices.
    pub sharding: Option<&'static str>,
    /// Whether the tool learns answers alone only where the chat template marks them (`{% generation %}`).
    pub asks_for_answer_marks: bool,
    /// Makes the files for the folder that they will lie in.
    pub render: fn(&ExportInput<'_>, &Path) -> Result<Rendered, RenderError>,
}
