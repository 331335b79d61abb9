//! An Apache Parquet file.
//!
//! Parquet wants a type for each column and SQLite promises none, so that columns are collected before they are written:
//! whole numbers as long as there is nothing else, then reals, then text. Null is a value of every column.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::finish_rows::FinishRows;
use super::value_text::{distinct, text};
use crate::store::{RowSink, SqlValue};

/// Rows of one row group.
const GROUP_ROWS: usize = 1 << 18;

/// Collects rows column by column and writes them at the end.
pub(super) struct ParquetRows {
    output: Option<Box<dyn Write + Send>>,
    names: Vec<String>,
    columns: Vec<Column>,
}

/// The values of a column, in the narrowest type that holds them all.
#[derive(Debug, PartialEq)]
enum Column {
    /// Nulls alone, so many of them.
    Nulls(usize),
    Integers(Vec<Option<i64>>),
    Reals(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Column {
    fn push(&mut self, value: &SqlValue<'_>) {
        match (&mut *self, value) {
            (Self::Nulls(count), SqlValue::Null) => *count += 1,
            (Self::Integers(values), SqlValue::Null) => values.push(None),
            (Self::Integers(values), SqlValue::Integer(value)) => values.push(Some(*value)),
            (Self::Reals(values), SqlValue::Null) => values.push(None),
            (Self::Reals(values), SqlValue::Real(value)) => values.push(Some(*value)),
            // Whole numbers among reals stay reals while they are exact.
            (Self::Reals(values), SqlValue::Integer(value)) if value.unsigned_abs() < 1 << 53 => {
                values.push(Some(*value as f64));
            }
            (Self::Texts(values), SqlValue::Null) => values.push(None),
            (Self::Texts(values), value) => values.push(Some(text(value).into_owned())),
            (Self::Blobs(values), SqlValue::Null) => values.push(None),
            (Self::Blobs(values), SqlValue::Blob(value)) => values.push(Some(value.to_vec())),
            (_, value) => {
                self.widen(value);
                self.push(value);
            }
        }
    }

    /// Takes a type that holds the values so far and `value`.
    fn widen(&mut self, value: &SqlValue<'_>) {
        let old = std::mem::replace(self, Self::Nulls(0));
        *self = match (old, value) {
            (Self::Nulls(count), SqlValue::Integer(_)) => Self::Integers(vec![None; count]),
            (Self::Nulls(count), SqlValue::Real(_)) => Self::Reals(vec![None; count]),
            (Self::Nulls(count), SqlValue::Blob(_)) => Self::Blobs(vec![None; count]),
            (Self::Nulls(count), _) => Self::Texts(vec![None; count]),
            (Self::Integers(values), SqlValue::Real(_))
                if values.iter().flatten().all(|value| value.unsigned_abs() < 1 << 53) =>
            {
                Self::Reals(
                    values
                        .into_iter()
                        .map(|value| value.map(|value| value as f64))
                        .collect(),
                )
            }
            (Self::Integers(values), _) => Self::Texts(texts(values, SqlValue::Integer)),
            (Self::Reals(values), _) => Self::Texts(texts(values, SqlValue::Real)),
            (Self::Blobs(values), _) => Self::Texts(texts(values, |bytes| SqlValue::Blob(bytes.into()))),
            (texts @ Self::Texts(_), _) => texts,
        };
    }

    fn schema(&self, name: &str) -> Result<Type, ParquetError> {
        let (physical, logical, converted) = match self {
            Self::Integers(_) => (Physical::INT64, None, ConvertedType::NONE),
            Self::Reals(_) => (Physical::DOUBLE, None, ConvertedType::NONE),
            Self::Blobs(_) => (Physical::BYTE_ARRAY, None, ConvertedType::NONE),
            Self::Nulls(_) | Self::Texts(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String), ConvertedType::UTF8),
        };
        Type::primitive_type_builder(name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .with_converted_type(converted)
            .build()
    }

    fn write(
        &self,
        group: &mut SerializedRowGroupWriter<'_, Box<dyn Write + Send>>,
        rows: std::ops::Range<usize>,
    ) -> Result<(), ParquetError> {
        let Some(mut writer) = group.next_column()? else {
            return Ok(());
        };
        match self {
            Self::Nulls(_) => {
                let levels = vec![0; rows.len()];
                writer.typed::<ByteArrayType>().write_batch(&[], Some(&levels), None)?;
            }
            Self::Integers(values) => {
                let (levels, values) = split(&values[rows], |value| *value);
                writer.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
            }
            Self::Reals(values) => {
                let (levels, values) = split(&values[rows], |value| *value);
                writer.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
            Self::Texts(values) => {
                let (levels, values) = split(&values[rows], |value| ByteArray::from(value.as_str()));
                writer
                    .typed::<ByteArrayType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Self::Blobs(values) => {
                let (levels, values) = split(&values[rows], |value| ByteArray::from(value.clone()));
                writer
                    .typed::<ByteArrayType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
        }
        writer.close()
    }

    fn len(&self) -> usize {
        match self {
            Self::Nulls(count) => *count,
            Self::Integers(values) => values.len(),
            Self::Reals(values) => values.len(),
            Self::Texts(values) => values.len(),
            Self::Blobs(values) => values.len(),
        }
    }
}

fn texts<T>(values: Vec<Option<T>>, wrap: impl Fn(T) -> SqlValue<'static>) -> Vec<Option<String>> {
    values
        .into_iter()
        .map(|value| value.map(|value| text(&wrap(value)).into_owned()))
        .collect()
}

/// Definition levels (1 where there is a value) and the values that are there.
fn split<T, V>(values: &[Option<T>], convert: impl Fn(&T) -> V) -> (Vec<i16>, Vec<V>) {
    let levels = values.iter().map(|value| i16::from(value.is_some())).collect();
    (levels, values.iter().flatten().map(convert).collect())
}

impl ParquetRows {
    pub(super) fn new(output: Box<dyn Write + Send>) -> Self {
        Self {
            output: Some(output),
            names: Vec::new(),
            columns: Vec::new(),
        }
    }

    fn write(&self, output: Box<dyn Write + Send>) -> Result<(), ParquetError> {
        let fields = self.names.iter().zip(&self.columns);
        let fields = fields
            .map(|(name, column)| column.schema(name).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let schema = Arc::new(Type::group_type_builder("rows").with_fields(fields).build()?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = SerializedFileWriter::new(output, schema, Arc::new(properties))?;
        let rows = self.columns.first().map_or(0, Column::len);
        for start in (0..rows).step_by(GROUP_ROWS) {
            let mut group = writer.next_row_group()?;
            for column in &self.columns {
                column.write(&mut group, start..rows.min(start + GROUP_ROWS))?;
            }
            group.close()?;
        }
        writer.close().map(drop)
    }
}

impl RowSink for ParquetRows {
    fn columns(&mut self, names: &[String]) -> io::Result<()> {
        self.names = distinct(names);
        self.columns = names.iter().map(|_| Column::Nulls(0)).collect();
        Ok(())
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> io::Result<()> {
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(value);
        }
        Ok(())
    }
}

impl FinishRows for ParquetRows {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        match self.output.take() {
            Some(output) => self.write(output).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_takes_the_narrowest_type_of_all_its_values() {
        let of = |values: Vec<SqlValue>| {
            let mut column = Column::Nulls(0);
            values.iter().for_each(|value| column.push(value));
            column
        };
        use SqlValue::{Integer, Null, Real, Text};
        assert_eq!(of(vec![Null, Null]), Column::Nulls(2));
        assert_eq!(of(vec![Null, Integer(3)]), Column::Integers(vec![None, Some(3)]));
        assert_eq!(
            of(vec![Integer(3), Real(0.5), Integer(1)]),
            Column::Reals(vec![Some(3.0), Some(0.5), Some(1.0)])
        );
        assert_eq!(
            of(vec![Integer(1 << 60), Real(0.5)]),
            Column::Texts(vec![Some((1i64 << 60).to_string()), Some("0.5".into())])
        );
        assert_eq!(
            of(vec![Real(0.5), Text("a".into()), Null]),
            Column::Texts(vec![Some("0.5".into()), Some("a".into()), None])
        );
    }
}
