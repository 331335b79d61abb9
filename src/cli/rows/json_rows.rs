//! A JSON list of objects, a row each.

use std::io::{self, BufWriter, Write};

use super::{FinishRows, distinct, hexadecimal};
use crate::store::{RowSink, SqlValue};

/// Writes rows as they come.
pub struct JsonRows {
    writer: BufWriter<Box<dyn Write + Send>>,
    names: Vec<String>,
    rows: usize,
}

impl JsonRows {
    pub fn new(output: Box<dyn Write + Send>) -> Self {
        Self {
            writer: BufWriter::new(output),
            names: Vec::new(),
            rows: 0,
        }
    }
}

impl RowSink for JsonRows {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.names = distinct(names);
        self.writer.write_all(b"[")
    }

    fn row(&mut self, values: Vec<SqlValue>) -> io::Result<()> {
        let object: serde_json::Map<_, _> = self.names.iter().cloned().zip(values.iter().map(json)).collect();
        let separator: &[u8] = if self.rows == 0 { b"\n  " } else { b",\n  " };
        self.writer.write_all(separator)?;
        self.rows += 1;
        serde_json::to_writer(&mut self.writer, &object).map_err(io::Error::from)
    }
}

impl FinishRows for JsonRows {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        let end: &[u8] = if self.rows == 0 { b"]\n" } else { b"\n]\n" };
        self.writer.write_all(end)?;
        self.writer.flush()
    }
}

fn json(value: &SqlValue) -> serde_json::Value {
    match value {
        SqlValue::Null => serde_json::Value::Null,
        SqlValue::Integer(value) => (*value).into(),
        // JSON has no infinity, which a query can make: null then.
        SqlValue::Real(value) => (*value).into(),
        SqlValue::Text(value) => value.as_str().into(),
        SqlValue::Blob(bytes) => hexadecimal(bytes).into(),
    }
}
