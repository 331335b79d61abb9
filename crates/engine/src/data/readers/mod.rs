//! Rows of files: one reader per kind of file, chosen by the name's ending or else by the first bytes.

mod csv_rows;
mod json_rows;
mod kind;
mod lone_object;
mod parquet_rows;
mod text_pieces;

use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::meter::{Meter, bytes_of};
use super::progress::{self, ReadingStage};
use super::{DataError, RowLocation};
use kind::FileKind;

pub(super) use json_rows::kind_of;

/// One row of a file, as it stands there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// Named columns.
    Columns(Map<String, Value>),
    /// A piece of a plain text file. Pieces follow one another without a gap.
    Text {
        text: String,
        /// Number of the piece in its file, from 0.
        piece: u64,
        /// Whether the file ends here.
        is_last: bool,
    },
}

/// Takes rows one at a time and says whether it wants more.
pub(super) type Visitor<'a> = dyn FnMut(RowLocation, Record) -> Result<ControlFlow<()>, DataError> + 'a;

/// Reads the rows of a JSONL, JSON, CSV, TSV, Parquet or plain text file in their order. `meter` says how far that is.
///
/// # Errors
/// Fails on what cannot be read, with the line or row; and where `visit` does.
pub(super) fn read_rows(path: &Path, meter: &Meter, visit: &mut Visitor) -> Result<(), DataError> {
    let shared: Arc<Path> = path.into();
    match FileKind::of(path)? {
        FileKind::JsonLines => json_rows::read_lines(&shared, meter, visit),
        FileKind::Json => json_rows::read_document(&shared, meter, visit),
        FileKind::Separated(separator) => csv_rows::read(&shared, separator, meter, visit),
        FileKind::Parquet => parquet_rows::read(&shared, meter, visit),
        FileKind::PlainText => text_pieces::read(&shared, meter, visit),
    }
}

/// Rows of `files`, up to the first one that cannot be read.
pub fn rows_in(files: &[PathBuf]) -> u64 {
    count_rows(files, &[], usize::MAX) as u64
}

/// Rows of `files`, at most `limit`; those up to the first one that cannot be read. Columns are not looked at, and files whose rows
/// are `known` are not read again.
pub(super) fn count_rows(files: &[PathBuf], known: &[Option<usize>], limit: usize) -> usize {
    let known = known.iter().copied().chain(std::iter::repeat(None));
    let unknown = files.iter().zip(known.clone()).filter(|(_, known)| known.is_none());
    progress::begin(ReadingStage::Counting, bytes_of(unknown.map(|(path, _)| path)));
    let (mut count, meter) = (0, Meter::default());
    for (path, known) in files.iter().zip(known) {
        if count >= limit {
            break;
        }
        if let Some(rows) = known {
            count = limit.min(count.saturating_add(rows));
            continue;
        }
        // What cannot be read is told by who reads it.
        let _ = count_file(path, &meter, &mut |rows| {
            count = limit.min(count.saturating_add(rows));
            progress::count();
            match count < limit {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
    }
    count
}

/// Rows of a file of lines, as far as `file` holds it; `None` where it is of another kind or has a line that cannot be read.
pub(super) fn count_lines(path: &Path, file: impl Read) -> Option<usize> {
    if FileKind::of(path).ok()? != FileKind::JsonLines {
        return None;
    }
    let mut rows = 0;
    let counted = json_rows::each_line(&path.into(), file, &mut |_, _| {
        rows += 1;
        progress::count();
        Ok(ControlFlow::Continue(()))
    });
    counted.ok().map(|()| rows)
}

/// Tells `seen` of the rows of a file.
fn count_file(path: &Path, meter: &Meter, seen: &mut dyn FnMut(usize) -> ControlFlow<()>) -> Result<(), DataError> {
    let shared: Arc<Path> = path.into();
    match FileKind::of(path)? {
        FileKind::JsonLines => json_rows::each_line(&shared, json_rows::open(&shared)?, &mut |_, line| {
            meter.pass(line.len() as u64);
            Ok(seen(1))
        }),
        FileKind::Separated(separator) => csv_rows::each_record(&shared, separator, meter, &mut |_, _, _| Ok(seen(1))),
        FileKind::Parquet => {
            let _ = seen(parquet_rows::count(&shared)?);
            Ok(())
        }
        FileKind::Json | FileKind::PlainText => read_rows(path, meter, &mut |_, _| Ok(seen(1))),
    }
}

/// The whole file as UTF-8 text, without a byte order mark.
fn read_text(path: &Arc<Path>) -> Result<String, DataError> {
    let mut bytes = std::fs::read(path).map_err(|source| DataError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    if bytes.starts_with(BOM) {
        bytes.drain(..BOM.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
        DataError::NotUtf8 {
            location: RowLocation::new(path, super::Unit::Line, line),
            hint: utf8_hint(error.as_bytes()),
        }
    })
}

/// The byte order mark of UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Encoding that bytes which are not UTF-8 probably have.
fn utf8_hint(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it looks like UTF-16; save it as UTF-8",
        [0x1f, 0x8b, ..] => "it is compressed with gzip; unpack it first",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "it is compressed with zstd; unpack it first",
        [b'P', b'K', 3, 4, ..] => "it is a zip archive or a spreadsheet; save the data as CSV or JSONL",
        _ => "save the file as UTF-8",
    }
}

#[cfg(test)]
mod tests;
