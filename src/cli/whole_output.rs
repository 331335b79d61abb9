//! A file that a command writes: whole or not at all.

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::CliError;
use peft_tune_core::whole_file::{WholeFile, is_no_file};

/// A file that appears whole or not at all.
pub(super) struct WholeOutput {
    file: WholeFile,
    path: PathBuf,
}

impl WholeOutput {
    /// Begins a file; one that is there already is replaced only with `force`.
    pub(super) fn create(path: &Path, force: bool) -> Result<(Self, Box<dyn Write + Send>), CliError> {
        let failed = |error: io::Error| CliError::cannot_write(path, &error, "--output");
        if !force && !is_no_file(path) && path.symlink_metadata().is_ok() {
            return Err(CliError::bad_input(anyhow::anyhow!(
                "{} already exists; choose another --output, or overwrite it with --force",
                path.display()
            )));
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let file = WholeFile::create(path, force).map_err(failed)?;
        let output = file.handle().map_err(failed)?;
        let path = path.to_owned();
        Ok((Self { file, path }, Box::new(io::BufWriter::new(output))))
    }

    /// Puts the file into its place.
    pub(super) fn keep(self) -> Result<(), CliError> {
        let kept = self.file.finish();
        kept.map_err(|error| CliError::cannot_write(&self.path, &error, "--output"))
    }
}

/// Refuses a path of `option` that is a folder, or in a folder that is not there, before time is spent on what is written to it.
pub(super) fn check_place(option: &str, path: &Path) -> Result<(), CliError> {
    if path.is_dir() {
        return Err(CliError::bad(format!(
            "{option} {} is a folder; name a file in it",
            path.display()
        )));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(CliError::bad(format!(
            "{option} {}: there is no folder {}; create it first",
            path.display(),
            folder.display()
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_not_kept_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/rows.csv");
        drop(WholeOutput::create(&path, false).unwrap());
        assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 0);
        let (whole, mut output) = WholeOutput::create(&path, false).unwrap();
        output.write_all(b"x").unwrap();
        drop(output);
        whole.keep().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        assert!(WholeOutput::create(&path, false).is_err());
    }

    #[test]
    fn a_folder_and_a_file_in_none_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let told = |path: &Path| check_place("--report", path).unwrap_err().to_string();
        assert!(told(folder.path()).contains("is a folder"));
        assert!(told(&folder.path().join("no/run.json")).contains("there is no folder"));
        check_place("--report", &folder.path().join("run.json")).unwrap();
        check_place("--report", Path::new("run.json")).unwrap();
    }
}
