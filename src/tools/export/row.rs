//! [`ExportRow`]: how a tool's file is written.

use std::path::Path;

use super::reading::Reading;
use super::{ExportInput, RenderError, Rendered};
use crate::tools::Tool;

/// What is to be known of the file that a tool is started with.
pub(in crate::tools) struct ExportRow {
    /// One line of help.
    pub about: &'static str,
    pub file_name: &'static str,
    /// How the tool reads rows; `None` where the file names none.
    pub reading: Option<Reading>,
    /// How the tool shares weights out, where its file has no key for it; `None` where the file has one, or says nothing of devices.
    pub sharding: Option<&'static str>,
    /// Whether the tool learns answers alone only where the chat template marks them (`{% generation %}`).
    pub asks_for_answer_marks: bool,
    /// Makes the files for the folder that they will lie in.
    pub render: fn(&ExportInput<'_>, &Path) -> Result<Rendered, RenderError>,
}

impl Tool {
    pub(in crate::tools) fn export(self) -> &'static ExportRow {
        &self.row().export
    }

    /// What the tool's file is, in one line.
    pub fn about_file(self) -> &'static str {
        self.export().about
    }

    /// Name of the file that the tool is started with.
    pub fn file_name(self) -> &'static str {
        self.export().file_name
    }

    /// Whether the tool learns answers alone only where the chat template marks them.
    pub fn asks_for_answer_marks(self) -> bool {
        self.export().asks_for_answer_marks
    }

    /// Makes the tool's files for the folder that they will lie in.
    ///
    /// # Errors
    /// What the tool has no way to say.
    pub fn render(self, input: &ExportInput<'_>, folder: &Path) -> Result<Rendered, RenderError> {
        (self.export().render)(input, folder)
    }
}
