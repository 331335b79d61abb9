//! A text table, which has to know all rows before it can write the first.

use std::io::{self, Write};

use super::{FinishRows, text};
use crate::report::{Align, TextTable};
use crate::store::{RowSink, SqlValue};

/// Collects rows and writes a table with their number below it.
pub struct TableRows {
    output: Box<dyn Write + Send>,
    width: Option<usize>,
    names: Vec<String>,
    rows: Vec<Vec<SqlValue>>,
}

impl TableRows {
    pub fn new(output: Box<dyn Write + Send>, width: Option<usize>) -> Self {
        Self {
            output,
            width,
            names: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn to_text(&self) -> String {
        let columns = self.names.iter().enumerate().map(|(column, name)| {
            let numbers = self
                .rows
                .iter()
                .all(|row| !matches!(row[column], SqlValue::Text(_) | SqlValue::Blob(_)));
            (name.clone(), if numbers { Align::Right } else { Align::Left })
        });
        let mut table = TextTable::new(columns);
        for row in &self.rows {
            table.push(row.iter().map(|value| match value {
                SqlValue::Null => "NULL".to_owned(),
                value => text(value),
            }));
        }
        let count = match self.rows.len() {
            1 => "1 row".to_owned(),
            count => format!("{count} rows"),
        };
        format!("{}\n({count})\n", table.to_text(self.width))
    }
}

impl RowSink for TableRows {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.names = names.to_vec();
        Ok(())
    }

    fn row(&mut self, values: Vec<SqlValue>) -> io::Result<()> {
        self.rows.push(values);
        Ok(())
    }
}

impl FinishRows for TableRows {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        let text = self.to_text();
        self.output.write_all(text.as_bytes())?;
        self.output.flush()
    }
}
