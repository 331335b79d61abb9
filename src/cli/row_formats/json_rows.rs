//! A JSON list of objects, a row each.

use std::io::{self, BufWriter, Write};

use serde::{Serialize, Serializer};

use super::finish_rows::FinishRows;
use super::value_text::distinct;
use crate::store::{RowSink, SqlValue};
use peft_tune_core::hexadecimal;

/// Writes rows as they come.
pub(super) struct JsonRows {
    writer: BufWriter<Box<dyn Write + Send>>,
    names: Vec<String>,
    rows: usize,
}

impl JsonRows {
    pub(super) fn new(output: Box<dyn Write + Send>) -> Self {
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

    fn row(&mut self, values: &[SqlValue<'_>]) -> io::Result<()> {
        let separator: &[u8] = if self.rows == 0 { b"\n  " } else { b",\n  " };
        self.writer.write_all(separator)?;
        self.rows += 1;
        let object = Object {
            names: &self.names,
            values,
        };
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

/// A row as an object.
struct Object<'a> {
    names: &'a [String],
    values: &'a [SqlValue<'a>],
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.names.iter().zip(self.values.iter().map(Json)))
    }
}

/// A value as JSON has it.
struct Json<'a>(&'a SqlValue<'a>);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            SqlValue::Null => serializer.serialize_unit(),
            SqlValue::Integer(value) => serializer.serialize_i64(*value),
            // JSON has no infinity, which a query can make: serde_json writes null then.
            SqlValue::Real(value) => serializer.serialize_f64(*value),
            SqlValue::Text(value) => serializer.serialize_str(value),
            SqlValue::Blob(bytes) => serializer.serialize_str(&hexadecimal(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_an_object_in_the_order_of_its_columns() {
        let names = ["z", "a", "infinite", "nothing", "bytes"].map(str::to_owned);
        let values = [
            SqlValue::Text("\"é\"".into()),
            SqlValue::Integer(-3),
            SqlValue::Real(f64::INFINITY),
            SqlValue::Null,
            SqlValue::Blob(vec![0, 255].into()),
        ];
        let object = Object {
            names: &names,
            values: &values,
        };
        assert_eq!(
            serde_json::to_string(&object).unwrap(),
            r#"{"z":"\"é\"","a":-3,"infinite":null,"nothing":null,"bytes":"00ff"}"#
        );
    }
}
