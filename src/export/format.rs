//! [`ExportFormat`]: the forms of a trial's settings.

use std::fmt;

use super::recipe;
use crate::tools::Tool;
use peft_tune_core::recipe::TrainerKind;

/// Whose file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// The recipe as peft-tune reads it.
    Recipe,
    Tool(Tool),
}

impl ExportFormat {
    /// All formats.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Recipe).chain(Tool::ALL.iter().copied().map(Self::Tool))
    }

    /// The tool that trains from the file; none of this program's own recipe.
    pub fn tool(self) -> Option<Tool> {
        match self {
            Self::Recipe => None,
            Self::Tool(tool) => Some(tool),
        }
    }

    /// Name as the command line has it.
    pub fn name(self) -> &'static str {
        self.tool().map_or(recipe::NAME, Tool::name)
    }

    /// Description of the format, in one line.
    pub fn about(self) -> &'static str {
        self.tool().map_or(recipe::ABOUT, Tool::about_file)
    }

    /// Names that the file may have which is started with.
    pub fn file_names(self) -> Vec<&'static str> {
        self.tool()
            .map_or(vec![recipe::FILE_NAME], |tool| tool.file_names().collect())
    }

    /// Name of the file that is started with for a trainer.
    pub fn file_for(self, trainer: TrainerKind) -> &'static str {
        let of_tool = self.tool().and_then(|tool| tool.file_for(trainer));
        of_tool.unwrap_or(self.file_name())
    }

    /// Name of the file that is started with.
    pub fn file_name(self) -> &'static str {
        self.tool().map_or(recipe::FILE_NAME, Tool::file_name)
    }
}

impl From<Tool> for ExportFormat {
    fn from(tool: Tool) -> Self {
        Self::Tool(tool)
    }
}

impl fmt::Display for ExportFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
