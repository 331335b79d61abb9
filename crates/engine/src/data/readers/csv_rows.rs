//! Comma-separated values (and tabs or semicolons), with a header line.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use csv::{ByteRecord, StringRecord};
use serde_json::{Map, Value};

use super::{BOM, DataError, Record, RowLocation, Visitor, utf8_hint};
use crate::data::Unit;
use crate::data::meter::Meter;

/// Takes the names of the columns, a record and its line, and says whether it wants more.
pub(super) type RecordVisitor<'a> =
    dyn FnMut(&StringRecord, &ByteRecord, u64) -> Result<ControlFlow<()>, DataError> + 'a;

/// Reads rows whose columns are named by the first line. Empty fields are empty strings.
pub(super) fn read(
    path: &Arc<Path>,
    separator: Option<u8>,
    meter: &Meter,
    visit: &mut Visitor,
) -> Result<(), DataError> {
    each_record(path, separator, meter, &mut |header, record, line| {
        let mut columns = Map::new();
        for (at, (name, field)) in header.iter().zip(record).enumerate() {
            let text = std::str::from_utf8(field).map_err(|error| {
                let before = record.iter().take(at).chain([&field[..error.valid_up_to()]]);
                let ends = before.flatten().filter(|byte| **byte == b'\n').count();
                not_utf8(path, line + ends as u64)
            })?;
            columns.insert(name.trim().to_owned(), Value::from(text));
        }
        visit(RowLocation::new(path, Unit::Line, line), Record::Columns(columns))
    })
}

/// Goes through the records of a file, with this separator or, without one, what the header has most of.
pub(super) fn each_record(
    path: &Arc<Path>,
    separator: Option<u8>,
    meter: &Meter,
    look: &mut RecordVisitor,
) -> Result<(), DataError> {
    let read_error = |source| DataError::Read {
        path: path.to_path_buf(),
        source,
    };
    if is_blank(path).map_err(read_error)? {
        return Ok(());
    }
    let separator = match separator {
        Some(separator) => separator,
        None => guess_separator(&first_line(path).map_err(read_error)?),
    };
    let file = open(path).map_err(read_error)?;
    let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(file);
    let header = reader.byte_headers().map_err(|error| bad_csv(path, &error))?.clone();
    let header = StringRecord::from_byte_record(header).map_err(|_| not_utf8(path, 1))?;
    check_names(path, &header)?;
    let mut record = ByteRecord::new();
    let mut lines = LineCounter::new(open(path).map_err(read_error)?);
    while reader
        .read_byte_record(&mut record)
        .map_err(|error| bad_csv(path, &error))?
    {
        let byte = record.position().map_or(0, csv::Position::byte);
        let line = lines.at(byte).map_err(read_error)?;
        meter.pass(reader.position().byte().saturating_sub(byte));
        if look(&header, &record, line)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Refuses a header that has a name twice: a row would have only the last of these columns. Columns without a name are no mistake:
/// spreadsheets leave them.
fn check_names(path: &Arc<Path>, header: &StringRecord) -> Result<(), DataError> {
    let mut known = HashSet::new();
    let mut names = header.iter().map(str::trim).filter(|name| !name.is_empty());
    match names.find(|name| !known.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(DataError::ColumnTwice {
            location: RowLocation::new(path, Unit::Line, 1),
            column: name.to_owned(),
        }),
    }
}

/// The file, behind a byte order mark.
fn open(path: &Path) -> io::Result<BufReader<File>> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    if file.fill_buf()?.starts_with(BOM) {
        file.consume(BOM.len());
    }
    Ok(file)
}

fn is_blank(path: &Path) -> io::Result<bool> {
    let mut file = open(path)?;
    loop {
        let block = file.fill_buf()?;
        if block.is_empty() {
            return Ok(true);
        }
        if !block.trim_ascii().is_empty() {
            return Ok(false);
        }
        let length = block.len();
        file.consume(length);
    }
}

fn first_line(path: &Path) -> io::Result<Vec<u8>> {
    const LONGEST: u64 = 1 << 20;
    let mut line = Vec::new();
    open(path)?.take(LONGEST).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn not_utf8(path: &Arc<Path>, line: u64) -> DataError {
    let mut head = Vec::new();
    // What cannot be read any more looks like nothing.
    let _ = File::open(path).and_then(|file| file.take(4).read_to_end(&mut head));
    DataError::NotUtf8 {
        location: RowLocation::new(path, Unit::Line, line),
        hint: utf8_hint(&head),
    }
}

/// Finds lines by bytes.
///
/// Design note: the parser counts lines itself, but one too few where lines end in `\r\n`, because it takes the `\r`
/// for the end and meets the `\n` only with the next record. So the file is read a second time beside it.
struct LineCounter<R> {
    file: R,
    byte: u64,
    line: u64,
}

impl<R: BufRead> LineCounter<R> {
    fn new(file: R) -> Self {
        Self { file, byte: 0, line: 1 }
    }

    /// The line of the first byte from `byte` on that is not a line end; `byte` never falls.
    fn at(&mut self, byte: u64) -> io::Result<u64> {
        loop {
            let block = self.file.fill_buf()?;
            let ahead = byte.saturating_sub(self.byte).min(block.len() as u64) as usize;
            let ends = block[ahead..]
                .iter()
                .take_while(|byte| matches!(byte, b'\r' | b'\n'))
                .count();
            let passed = ahead + ends;
            self.line += block[..passed].iter().filter(|byte| **byte == b'\n').count() as u64;
            let is_done = passed < block.len() || block.is_empty();
            self.byte += passed as u64;
            self.file.consume(passed);
            if is_done {
                return Ok(self.line);
            }
        }
    }
}

/// The separator that the header, of which the text is the first line, has most of, outside quotes.
fn guess_separator(header: &[u8]) -> u8 {
    let mut quoted = false;
    let mut counts = [(b',', 0), (b'\t', 0), (b';', 0)];
    for byte in header {
        quoted ^= *byte == b'"';
        if let Some((_, count)) = counts.iter_mut().find(|(separator, _)| separator == byte && !quoted) {
            *count += 1;
        }
    }
    // The comma comes last and wins a tie.
    counts
        .iter()
        .rev()
        .max_by_key(|(_, count)| *count)
        .map_or(b',', |(separator, _)| *separator)
}

fn bad_csv(path: &Arc<Path>, error: &csv::Error) -> DataError {
    let line = error.position().map_or(1, csv::Position::line);
    let reason = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields where the header has {expected_len}")
        }
        _ => error.to_string(),
    };
    DataError::BadCsv {
        location: RowLocation::new(path, Unit::Line, line),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::guess_separator;

    #[test]
    fn the_header_tells_the_separator() {
        let cases = [
            ("a,b,c", b','),
            ("a;b;c\n", b';'),
            ("a\tb", b'\t'),
            ("text", b','),
            ("\"a;b\",c", b','),
        ];
        for (header, separator) in cases {
            assert_eq!(guess_separator(header.as_bytes()), separator, "{header}");
        }
    }
}
