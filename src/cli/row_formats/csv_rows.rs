//! Comma-separated values.

use std::io::{self, Write};

use super::finish_rows::FinishRows;
use super::value_text::text;
use crate::store::{RowSink, SqlValue};

/// Writes a heading line and a line for each row.
pub(super) struct CsvRows {
    writer: csv::Writer<Box<dyn Write + Send>>,
}

impl CsvRows {
    pub(super) fn new(output: Box<dyn Write + Send>) -> Self {
        Self {
            writer: csv::Writer::from_writer(output),
        }
    }
}

impl RowSink for CsvRows {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.writer.write_record(names).map_err(to_io)
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> io::Result<()> {
        for value in values {
            self.writer.write_field(text(value).as_bytes()).map_err(to_io)?;
        }
        // Nothing more: the end of the line.
        self.writer.write_record(None::<&[u8]>).map_err(to_io)
    }
}

impl FinishRows for CsvRows {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.writer.flush()
    }
}

fn to_io(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
