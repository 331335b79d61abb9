//! A text table, which has to know all rows before it can write the first.

use std::io::{self, Write};

use super::finish_rows::FinishRows;
use super::value_text::text;
use crate::report::{Align, TextTable};
use crate::store::{RowSink, SqlValue};

/// Collects rows and writes a table with their number below it.
pub(super) struct TableRows {
    output: Box<dyn Write + Send>,
    width: Option<usize>,
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

struct Column {
    name: String,
    /// Whether the column has held nothing but numbers and nulls.
    numbers: bool,
}

impl TableRows {
    pub(super) fn new(output: Box<dyn Write + Send>, width: Option<usize>) -> Self {
        Self {
            output,
            width,
            columns: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn into_text(self) -> (String, Box<dyn Write + Send>) {
        let columns = self.columns.into_iter().map(|column| {
            let align = if column.numbers { Align::Right } else { Align::Left };
            (column.name, align)
        });
        let mut table = TextTable::new(columns);
        let count = match self.rows.len() {
            1 => "1 row".to_owned(),
            count => format!("{count} rows"),
        };
        self.rows.into_iter().for_each(|row| table.push(row));
        (format!("{}\n({count})\n", table.to_text(self.width)), self.output)
    }
}

impl RowSink for TableRows {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.columns = names
            .iter()
            .map(|name| Column {
                name: name.clone(),
                numbers: true,
            })
            .collect();
        Ok(())
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> io::Result<()> {
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.numbers &= !matches!(value, SqlValue::Text(_) | SqlValue::Blob(_));
        }
        let cells = values.iter().map(|value| match value {
            SqlValue::Null => "NULL".to_owned(),
            value => text(value).into_owned(),
        });
        self.rows.push(cells.collect());
        Ok(())
    }
}

impl FinishRows for TableRows {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let (text, mut output) = self.into_text();
        output.write_all(text.as_bytes())?;
        output.flush()
    }
}
