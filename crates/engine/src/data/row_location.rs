//! Location of a row in a user's file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A row of a data file, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    path: Arc<Path>,
    unit: Unit,
    /// Number of the row, from 1.
    number: u64,
}

/// Unit that is counted in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Lines of a text file.
    Line,
    /// Rows of a file whose lines mean nothing: a JSON list, Parquet.
    Row,
}

impl RowLocation {
    /// Line or row `number` (from 1) of the file at `path`.
    pub fn new(path: &Arc<Path>, unit: Unit, number: u64) -> Self {
        Self {
            path: Arc::clone(path),
            unit,
            number,
        }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// Whether both stand in the same file.
    pub fn is_same_file(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.path, &other.path) || self.path == other.path
    }
}

impl fmt::Display for RowLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Line => "line",
            Unit::Row => "row",
        };
        write!(f, "{} {unit} {}", self.path.display(), self.number)
    }
}
