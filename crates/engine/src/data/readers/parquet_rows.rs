//! Parquet, with flat or nested columns.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Map, Number, Value};

use super::{DataError, Record, RowLocation, Visitor};
use crate::data::Unit;
use crate::data::meter::{Meter, bytes_of_file};
use crate::guarded::guarded;

/// Reads rows in the order of the file.
pub(super) fn read(path: &Arc<Path>, meter: &Meter, visit: &mut Visitor) -> Result<(), DataError> {
    let file = File::open(path).map_err(|source| DataError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let bad = |reason: String| DataError::BadParquet {
        path: path.to_path_buf(),
        reason,
    };
    let reader = guarded(|| SerializedFileReader::new(file)).map_err(bad)?;
    let mut rows = guarded(|| reader.get_row_iter(None)).map_err(bad)?;
    let count = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
    let bytes = bytes_of_file(path);
    for number in 1.. {
        let Some(row) = guarded(|| rows.next().transpose()).map_err(|reason| bad(format!("row {number}: {reason}")))?
        else {
            break;
        };
        meter.pass_row(number - 1, count, bytes);
        let columns = columns_of(row).map_err(|reason| bad(format!("row {number}: {reason}")))?;
        if visit(RowLocation::new(path, Unit::Row, number), Record::Columns(columns))?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Rows that a file says it has.
pub(super) fn count(path: &Arc<Path>) -> Result<usize, DataError> {
    let file = File::open(path).map_err(|source| DataError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let reader = guarded(|| SerializedFileReader::new(file)).map_err(|reason| DataError::BadParquet {
        path: path.to_path_buf(),
        reason,
    })?;
    Ok(usize::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0))
}

fn columns_of(row: Row) -> Result<Map<String, Value>, String> {
    row.into_columns()
        .into_iter()
        .map(|(name, field)| {
            let value = to_json(&field).map_err(|reason| format!("column `{name}`: {reason}"))?;
            Ok((name, value))
        })
        .collect()
}

fn to_json(field: &Field) -> Result<Value, String> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(flag) => Value::from(*flag),
        Field::Byte(number) => Value::from(*number),
        Field::Short(number) => Value::from(*number),
        Field::Int(number) => Value::from(*number),
        Field::Long(number) => Value::from(*number),
        Field::UByte(number) => Value::from(*number),
        Field::UShort(number) => Value::from(*number),
        Field::UInt(number) => Value::from(*number),
        Field::ULong(number) => Value::from(*number),
        Field::Float16(number) => float(f64::from(*number)),
        Field::Float(number) => float(f64::from(*number)),
        Field::Double(number) => float(*number),
        Field::Str(text) => Value::from(text.as_str()),
        // Older writers store text without saying that it is text.
        Field::Bytes(bytes) => {
            Value::from(std::str::from_utf8(bytes.data()).map_err(|_| "binary data that is not UTF-8 text".to_owned())?)
        }
        Field::Group(row) => row
            .get_column_iter()
            .map(|(name, field)| Ok((name.clone(), to_json(field)?)))
            .collect::<Result<Map<_, _>, String>>()?
            .into(),
        Field::ListInternal(list) => list
            .elements()
            .iter()
            .map(to_json)
            .collect::<Result<Vec<_>, _>>()?
            .into(),
        Field::MapInternal(map) => map
            .entries()
            .iter()
            .map(|(key, value)| {
                let key = match to_json(key)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                Ok((key, to_json(value)?))
            })
            .collect::<Result<Map<_, _>, String>>()?
            .into(),
        // Dates, times and decimals: never training text, but a column beside it may hold them.
        other => Value::from(other.to_string()),
    })
}

fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}
