//! The file that a tool is started with: its names, and how it is made.

use std::path::Path;

use super::{ExportInput, RenderError, Rendered};
use crate::Tool;
use peft_tune_core::recipe::{Recipe, TrainerKind};

impl Tool {
    /// What the tool's file is, in one line.
    pub fn about_file(self) -> &'static str {
        self.export().about
    }

    /// Name of the file that the tool is started with.
    pub fn file_name(self) -> &'static str {
        self.export().file_name
    }

    /// Name of the file that the tool is started with for a trainer; `None` where it has no such trainer.
    pub fn file_for(self, trainer: TrainerKind) -> Option<&'static str> {
        let row = self.export();
        if trainer.is_sft() || !self.says_training() {
            return Some(row.file_name);
        }
        let mut others = row.other_trainers.iter();
        others.find(|(kind, _)| *kind == trainer).map(|(_, name)| *name)
    }

    /// Names that the file may have which the tool is started with.
    pub fn file_names(self) -> impl Iterator<Item = &'static str> {
        let row = self.export();
        std::iter::once(row.file_name).chain(row.other_trainers.iter().map(|(_, name)| *name))
    }

    /// Refuses a recipe whose trainer the tool is not told of here.
    ///
    /// # Errors
    /// A trainer of preferences, for all tools but TRL and those whose file says nothing of training.
    pub fn check_trainer(self, recipe: &Recipe) -> Result<(), RenderError> {
        match self.file_for(recipe.trainer) {
            Some(_) => Ok(()),
            None => Err(RenderError::Refused {
                tool: self,
                field: "trainer",
                reason: "of trainings on preferences no file is written for it; use --format trl or recipe",
            }),
        }
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
        self.check_trainer(input.recipe)?;
        (self.export().render)(input, folder)
    }
}
