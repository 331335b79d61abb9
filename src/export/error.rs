//! Why an export did not happen.

use std::path::PathBuf;

use super::ExportFormat;
use crate::space::RecipeFileError;
use crate::tools::export::RenderError;
use peft_tune_core::recipe::OptimizerKind;

/// A failed export; nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{} is there already; choose another --output, or overwrite it with --force", path.display())]
    Exists { path: PathBuf },
    #[error("cannot write {}: {source}; choose another path with `--output`", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{format} has no optimizer `{optimizer}`; use --format {}, or search with another one", others.join(", "))]
    NoOptimizer {
        format: ExportFormat,
        optimizer: OptimizerKind,
        /// Formats of tools that have it.
        others: Vec<&'static str>,
    },
    #[error(transparent)]
    Tool(#[from] RenderError),
    #[error(transparent)]
    Recipe(#[from] RecipeFileError),
}
