//! The formats: a file each, and the table of them all. A new one is its file and its lines here.

mod axolotl;
mod llamafactory;
mod peft;
mod recipe;
mod torchtune;
mod trl;
mod unsloth;

use std::fmt;
use std::path::Path;

use super::reading::Reading;
use super::write::Rendered;
use super::{ExportError, ExportInput};
use crate::tools::Tool;

/// A tool whose file can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    Recipe,
    Peft,
    Trl,
    Axolotl,
    LlamaFactory,
    Torchtune,
    Unsloth,
}

/// What is to be known of a format.
pub(super) struct Format {
    /// As the command line has it.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// The file that the tool is started with.
    pub file_name: &'static str,
    /// The tool as messages call it.
    pub title: &'static str,
    /// Whose keys the rows of the settings have.
    pub tool: Option<Tool>,
    /// How the tool reads rows; `None` where the file names none, or the tool makes tokens its own way whatever it is given.
    pub reading: Option<Reading>,
    /// Makes the files for the folder that they will lie in.
    pub render: fn(&ExportInput<'_>, &Path) -> Result<Rendered, ExportError>,
}

impl ExportFormat {
    pub const ALL: [Self; 7] = [
        Self::Recipe,
        Self::Peft,
        Self::Trl,
        Self::Axolotl,
        Self::LlamaFactory,
        Self::Torchtune,
        Self::Unsloth,
    ];

    pub(super) fn row(self) -> &'static Format {
        match self {
            Self::Recipe => &recipe::FORMAT,
            Self::Peft => &peft::FORMAT,
            Self::Trl => &trl::FORMAT,
            Self::Axolotl => &axolotl::FORMAT,
            Self::LlamaFactory => &llamafactory::FORMAT,
            Self::Torchtune => &torchtune::FORMAT,
            Self::Unsloth => &unsloth::FORMAT,
        }
    }

    /// The stack that trains from the file; none of this program's own recipe.
    pub fn stack(self) -> Option<Tool> {
        self.row().tool
    }

    /// Name as the command line has it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What it is, in one line.
    pub fn about(self) -> &'static str {
        self.row().about
    }

    /// Name of the file that the tool is started with.
    pub fn file_name(self) -> &'static str {
        self.row().file_name
    }
}

impl fmt::Display for ExportFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
