//! Rows of values as a table, CSV, JSON or Parquet.

mod csv_rows;
mod json_rows;
mod parquet_rows;
mod table_rows;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(super) use csv_rows::CsvRows;
pub(super) use json_rows::JsonRows;
pub(super) use parquet_rows::ParquetRows;
pub(super) use table_rows::TableRows;

use crate::cli::CliError;
use crate::store::{RowSink, SqlValue};
use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::{WholeFile, is_no_file};

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RowFormat {
    /// Columns for people, cut to the terminal's width
    Table,
    /// Comma-separated values with a heading line; null is empty, a blob hexadecimal
    Csv,
    /// A list of objects
    Json,
    /// An Apache Parquet file, with a type for each column
    Parquet,
}

/// A sink that has something to write after the last row.
pub(super) trait FinishRows: RowSink {
    /// Ends the output.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

impl RowFormat {
    /// Something that writes rows in this format; `width` is that of the terminal, for tables.
    pub(super) fn sink(self, output: Box<dyn Write + Send>, width: Option<usize>) -> Box<dyn FinishRows> {
        match self {
            Self::Table => Box::new(TableRows::new(output, width)),
            Self::Csv => Box::new(CsvRows::new(output)),
            Self::Json => Box::new(JsonRows::new(output)),
            Self::Parquet => Box::new(ParquetRows::new(output)),
        }
    }
}

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

/// Names that can be keys of one object: a name that comes again gets a number.
fn distinct(names: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let free = std::iter::once(name.clone())
            .chain(numbered)
            .find(|candidate| !seen.contains(candidate));
        seen.extend(free);
    }
    seen
}

/// The value as text: numbers so that they read back as the same, blobs in hexadecimal, null as nothing.
fn text<'a>(value: &'a SqlValue<'_>) -> Cow<'a, str> {
    match value {
        SqlValue::Null => Cow::Borrowed(""),
        SqlValue::Integer(value) => Cow::Owned(value.to_string()),
        SqlValue::Real(value) => Cow::Owned(format!("{value:?}")),
        SqlValue::Text(value) => Cow::Borrowed(value),
        SqlValue::Blob(bytes) => Cow::Owned(hexadecimal(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_one_name_stay_apart_in_json() {
        let names = ["id", "id", "id_2", "id"].map(str::to_owned);
        assert_eq!(distinct(&names), ["id", "id_2", "id_2_2", "id_3"]);
    }

    #[test]
    fn reals_read_back_as_the_same() {
        for value in [0.1 + 0.2, 1e-300, 3.0, -0.0] {
            assert_eq!(text(&SqlValue::Real(value)).parse::<f64>().unwrap(), value);
        }
    }

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
}
