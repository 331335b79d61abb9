//! The forms in which rows are written.

use std::io::Write;

use super::csv_rows::CsvRows;
use super::finish_rows::FinishRows;
use super::json_rows::JsonRows;
use super::parquet_rows::ParquetRows;
use super::table_rows::TableRows;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum RowFormat {
    /// Columns for people, cut to the terminal's width
    Table,
    /// Comma-separated values with a heading line; null is empty, a blob hexadecimal
    Csv,
    /// A list of objects
    Json,
    /// An Apache Parquet file, with a type for each column
    Parquet,
}

impl RowFormat {
    /// Something that writes rows in this format; `width` is that of the terminal, for tables.
    pub(in crate::cli) fn sink(self, output: Box<dyn Write + Send>, width: Option<usize>) -> Box<dyn FinishRows> {
        match self {
            Self::Table => Box::new(TableRows::new(output, width)),
            Self::Csv => Box::new(CsvRows::new(output)),
            Self::Json => Box::new(JsonRows::new(output)),
            Self::Parquet => Box::new(ParquetRows::new(output)),
        }
    }
}
