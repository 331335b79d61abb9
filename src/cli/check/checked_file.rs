//! The recipe file that is checked: a person's, or one on the quickstart's model, which the program has in itself.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cli::CliError;
use crate::cli::engines::folder;
use crate::cli::search::quickstart;

/// Text of the recipe on the quickstart's model: steps of four short rows, which take a second on any device.
const QUICKSTART: &str = "model: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\nadapter: {rank: 8}\n\
                          optimizer: {learning_rate: 1e-3}\n\
                          batch: {micro_batch: 2, gradient_accumulation: 2, sequence_length: 64}\n";
/// Folder of the quickstart's model and rows below that of its study file.
const BELOW: &str = "quickstart";
/// Variable that names the folder of temporary folders.
const TEMPORARY: &str = "TMPDIR";

/// A recipe file to check.
pub(super) enum CheckedFile {
    /// File of a person's.
    Named(PathBuf),
    /// Recipe on the quickstart's model, in a folder that goes with it.
    Quickstart { path: PathBuf, _folder: TempDir },
}

impl CheckedFile {
    /// The file that was named, else the recipe on the quickstart's model.
    ///
    /// # Errors
    /// Bad input: there is no room for the quickstart's files.
    pub(super) fn new(named: Option<&Path>) -> Result<Self, CliError> {
        if let Some(path) = named {
            return Ok(Self::Named(path.to_owned()));
        }
        let folder = folder::temporary("lay the quickstart's model down")?;
        quickstart::lay_down(folder.path(), TEMPORARY)?;
        let path = folder.path().join(BELOW).join("recipe.yaml");
        std::fs::write(&path, QUICKSTART).map_err(|error| CliError::cannot_write(&path, &error, TEMPORARY))?;
        Ok(Self::Quickstart { path, _folder: folder })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Quickstart { path, .. } => path,
        }
    }

    /// What is checked, for people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Named(path) => path.display().to_string(),
            Self::Quickstart { .. } => "the quickstart's model".to_owned(),
        }
    }
}
