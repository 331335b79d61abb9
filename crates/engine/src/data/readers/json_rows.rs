//! JSON lines, and JSON documents that hold a list of rows.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::lone_object::LoneObject;
use super::{BOM, DataError, Record, RowLocation, Visitor, read_text, utf8_hint};
use crate::data::Unit;
use crate::data::meter::{Meter, bytes_of_file};

/// Bytes that a row may have at most: some millions of tokens, more than any context.
const LINE_BYTES: u64 = 32 << 20;

/// Reads one object per line. Blank lines are skipped.
pub(super) fn read_lines(path: &Arc<Path>, meter: &Meter, visit: &mut Visitor) -> Result<(), DataError> {
    each_line(path, open(path)?, &mut |number, bytes| {
        meter.pass(bytes.len() as u64);
        let location = RowLocation::new(path, Unit::Line, number);
        let Ok(text) = std::str::from_utf8(bytes) else {
            let hint = utf8_hint(bytes);
            return Err(DataError::NotUtf8 { location, hint });
        };
        let row = serde_json::from_str(text).map_err(|error| DataError::BadJson {
            location: location.clone(),
            reason: without_line(&error),
        })?;
        match visit_row(location, row, visit)? {
            true => Ok(ControlFlow::Break(())),
            false => Ok(ControlFlow::Continue(())),
        }
    })
}

/// The file, for [`each_line`].
pub(super) fn open(path: &Path) -> Result<File, DataError> {
    File::open(path).map_err(|source| DataError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Goes through the lines of a file that are not blank, each with its number from 1 and its end.
pub(super) fn each_line(path: &Arc<Path>, file: impl Read, look: &mut LineVisitor) -> Result<(), DataError> {
    let read_error = |source| DataError::Read {
        path: path.to_path_buf(),
        source,
    };
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut limited = reader.by_ref().take(LINE_BYTES + 1);
        if limited.read_until(b'\n', &mut line).map_err(read_error)? == 0 {
            break;
        }
        if line.len() as u64 > LINE_BYTES {
            let location = RowLocation::new(path, Unit::Line, number);
            return Err(DataError::LineTooLong {
                location,
                mebibytes: LINE_BYTES >> 20,
            });
        }
        let bytes = match line.strip_prefix(BOM) {
            Some(rest) if number == 1 => rest,
            _ => &line,
        };
        if !bytes.trim_ascii().is_empty() && look(number, bytes)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Takes lines by their number and says whether it wants more.
pub(super) type LineVisitor<'a> = dyn FnMut(u64, &[u8]) -> Result<ControlFlow<()>, DataError> + 'a;

/// Reads a list of objects, the list of objects that an object holds, or an object that is a row. Rows are counted, not lines.
pub(super) fn read_document(path: &Arc<Path>, meter: &Meter, visit: &mut Visitor) -> Result<(), DataError> {
    let text = read_text(path)?;
    if text.trim().is_empty() {
        return Ok(());
    }
    let document = serde_json::from_str(&text).map_err(|error| DataError::BadJson {
        location: RowLocation::new(path, Unit::Line, error.line() as u64),
        reason: without_line(&error),
    })?;
    drop(text);
    let rows = rows_of(document).map_err(|reason| DataError::NoList {
        path: path.to_path_buf(),
        reason,
    })?;
    let (count, bytes) = (rows.len() as u64, bytes_of_file(path));
    for (index, row) in rows.into_iter().enumerate() {
        meter.pass_row(index as u64, count, bytes);
        let location = RowLocation::new(path, Unit::Row, index as u64 + 1);
        if visit_row(location, row, visit)? {
            break;
        }
    }
    Ok(())
}

/// Hands one row over and says whether that was enough.
fn visit_row(location: RowLocation, row: Value, visit: &mut Visitor) -> Result<bool, DataError> {
    match row {
        Value::Object(columns) => Ok(visit(location, Record::Columns(columns))?.is_break()),
        other => Err(DataError::NotAnObject {
            location,
            found: kind_of(&other),
        }),
    }
}

/// The rows of a document: itself, the list under the only key that holds one (`train` or `data` among several), or the one row that it
/// is.
fn rows_of(document: Value) -> Result<Vec<Value>, String> {
    let mut object = match document {
        Value::Array(rows) => return Ok(rows),
        Value::Object(object) => object,
        other => return Err(format!("it is {}", kind_of(&other))),
    };
    match LoneObject::of(&object) {
        LoneObject::Row => Ok(vec![Value::Object(object)]),
        LoneObject::Wrapper(key) => match object.remove(&key) {
            Some(Value::Array(rows)) => Ok(rows),
            _ => Ok(Vec::new()),
        },
        LoneObject::Unclear(keys) => Err(format!("several keys hold one: {}", keys.join(", "))),
        LoneObject::Other => Err("no key holds a list of objects".to_owned()),
    }
}

/// Name of a JSON value's kind, for messages.
pub(in crate::data) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The parser's message, without its own line number where ours is the file's.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    format!("{} at column {}", &message[..end], error.column())
}
