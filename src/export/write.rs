//! Writes the file of one format into a directory.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::rows::has_optimizer;
use super::{ExportError, ExportFormat, ExportInput, Exported, Warning};
use peft_tune_core::recipe::OptimizerKind;

/// The files of an export, and what they could not say.
pub(super) struct Rendered {
    /// Name and text of each file; the one that the tool is started with first.
    pub files: Vec<(&'static str, String)>,
    pub warnings: Vec<Warning>,
}

impl Rendered {
    /// An export of one file.
    pub fn new(format: ExportFormat, text: String, warnings: Vec<Warning>) -> Self {
        Self {
            files: vec![(format.file_name(), text)],
            warnings,
        }
    }
}

/// Writes `input` for one tool into `directory`, which is made where it is missing. The file appears whole or not at
/// all; one that is there already is replaced only with `force`.
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
    let Rendered { files, warnings } = (format.row().render)(input, directory)?;
    let paths: Vec<PathBuf> = files.iter().map(|(name, _)| directory.join(name)).collect();
    // Looked at before the first is written, so that none is where another is in the way.
    if !force && let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(ExportError::Exists { path: path.clone() });
    }
    for (path, (_, text)) in paths.iter().zip(&files) {
        write_whole(path, text, force)?;
    }
    Ok(Exported { files: paths, warnings })
}

/// Refuses a tool that has no such optimizer.
fn check_optimizer(format: ExportFormat, optimizer: OptimizerKind) -> Result<(), ExportError> {
    let has = |format: &ExportFormat| has_optimizer(format.row().tool, optimizer);
    if has(&format) {
        return Ok(());
    }
    let others = ExportFormat::ALL.into_iter().filter(has).map(ExportFormat::name);
    Err(ExportError::NoOptimizer {
        format,
        optimizer,
        others: others.collect(),
    })
}

fn write_whole(path: &Path, text: &str, force: bool) -> Result<(), ExportError> {
    let failed = |source| ExportError::Write {
        path: path.to_owned(),
        source,
    };
    let exists = || ExportError::Exists { path: path.to_owned() };
    if !force && path.symlink_metadata().is_ok() {
        return Err(exists());
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(failed)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = directory.join(format!(".{name}.{}.tmp", std::process::id()));
    let moved = fs::File::create(&draft)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| {
            if force {
                return fs::rename(&draft, path);
            }
            // A link, unlike a renaming, fails where another process has written the file meanwhile.
            fs::hard_link(&draft, path).or_else(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => Err(error),
                // Some file systems have no hard links.
                _ => fs::rename(&draft, path),
            })
        });
    // Gone already after a renaming; left over in every other case.
    let _ = fs::remove_file(&draft);
    moved.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(),
        _ => failed(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_replaced_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/file.txt");
        write_whole(&path, "one", false).unwrap();
        let refused = write_whole(&path, "two", false).unwrap_err();
        assert!(matches!(refused, ExportError::Exists { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        write_whole(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "no draft is left behind");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let error = write_whole(&folder.path().join("file/inside.txt"), "", false).unwrap_err();
        assert!(error.to_string().contains("inside.txt"), "{error}");
    }
}
