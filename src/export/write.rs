//! Writes the file of one format into a directory.

use std::path::{Path, PathBuf};

use super::{ExportError, ExportFormat, recipe};
use crate::tools::Tool;
use crate::tools::export::{ExportInput, Exported, Rendered};
use peft_tune_core::recipe::{OptimizerKind, Recipe};
use peft_tune_core::whole_file::write_whole;

/// Writes `input` for one tool into `directory`, which is made where it is missing. The file appears whole or not at
/// all; one that is there already is replaced only with `force`. What a tool's file names beside itself may be there with the same text,
/// from an export for another tool.
///
/// # Errors
/// Where the file exists and `force` is not given, where it cannot be written, and where the target has no way to say
/// what the recipe is.
pub fn write(
    format: ExportFormat,
    input: &ExportInput<'_>,
    directory: &Path,
    force: bool,
) -> Result<Exported, ExportError> {
    check_optimizer(format, input.recipe.optimizer.kind)?;
    let Rendered { mut files, warnings } = match format {
        ExportFormat::Recipe => recipe::render(input)?,
        ExportFormat::Tool(tool) => tool.render(input, directory)?,
    };
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| directory.join(name)).collect();
    let own = format.file_for(input.recipe.trainer);
    let is_own = |name: &str| name == own;
    files.retain(|(name, text)| is_own(name) || !has_text(&directory.join(name), text));
    // Looked at before the first is written, so that none is where another is in the way.
    let mut wanted = files.iter().map(|(name, _)| directory.join(name));
    if !force && let Some(path) = wanted.find(|path| path.symlink_metadata().is_ok()) {
        return Err(ExportError::Exists { path });
    }
    for (name, text) in &files {
        write_file(&directory.join(name), text, force)?;
    }
    Ok(Exported { files: paths, warnings })
}

impl ExportFormat {
    /// Refuses a directory in which the tool's file is already, and an optimizer or a trainer that the tool has not, before
    /// anything is written.
    ///
    /// # Errors
    /// Where the file that the tool is started with is in `directory` and `force` is not given, or there is no such
    /// optimizer or trainer.
    pub fn may_be_written(self, recipe: &Recipe, directory: &Path, force: bool) -> Result<(), ExportError> {
        check_optimizer(self, recipe.optimizer.kind)?;
        if let Some(tool) = self.tool() {
            tool.check_trainer(recipe)?;
        }
        let path = directory.join(self.file_for(recipe.trainer));
        match !force && path.symlink_metadata().is_ok() {
            true => Err(ExportError::Exists { path }),
            false => Ok(()),
        }
    }
}

/// Whether a plain file has this text already.
fn has_text(path: &Path, text: &str) -> bool {
    path.symlink_metadata().is_ok_and(|file| file.is_file())
        && std::fs::read(path).is_ok_and(|found| found == text.as_bytes())
}

/// Refuses a tool that has no such optimizer.
fn check_optimizer(format: ExportFormat, optimizer: OptimizerKind) -> Result<(), ExportError> {
    let takes = |tool: Tool| tool.takes_optimizer(optimizer);
    let has = |format: &ExportFormat| format.tool().is_none_or(takes);
    if has(&format) {
        return Ok(());
    }
    let others = ExportFormat::all().filter(has).map(ExportFormat::name);
    Err(ExportError::NoOptimizer {
        format,
        optimizer,
        others: others.collect(),
    })
}

fn write_file(path: &Path, text: &str, force: bool) -> Result<(), ExportError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and_then(|()| write_whole(path, text.as_bytes(), force));
    written.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => ExportError::Exists { path: path.to_owned() },
        _ => ExportError::Write {
            path: path.to_owned(),
            source,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let error = write_file(&folder.path().join("file/inside.txt"), "", false).unwrap_err();
        assert!(error.to_string().contains("inside.txt"), "{error}");
    }
}
