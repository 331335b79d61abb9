//! Comma-separated values (and tabs or semicolons), with a header line.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{DataError, Record, RowLocation, Visitor, read_text};
use crate::data::Unit;

/// Reads rows whose columns are named by the first line. Empty fields are empty strings.
pub(super) fn read(path: &Arc<Path>, separator: Option<u8>, visit: &mut Visitor) -> Result<(), DataError> {
    // Design note: the file is read whole, so that a byte that is not UTF-8 is told with its line.
    let text = read_text(path)?;
    if text.trim().is_empty() {
        return Ok(());
    }
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(separator.unwrap_or_else(|| guess_separator(&text)))
        .from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| bad_csv(path, &error))?.clone();
    let mut record = csv::StringRecord::new();
    let mut lines = LineCounter::new(&text);
    while reader.read_record(&mut record).map_err(|error| bad_csv(path, &error))? {
        let columns: Map<String, Value> = header
            .iter()
            .zip(&record)
            .map(|(name, field)| (name.trim().to_owned(), Value::from(field)))
            .collect();
        let line = lines.at(record.position().map_or(0, csv::Position::byte) as usize);
        if visit(RowLocation::new(path, Unit::Line, line), Record::Columns(columns))?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Finds lines by bytes.
///
/// Design note: the parser counts lines itself, but one too few where lines end in `\r\n`, because it takes the `\r`
/// for the end and meets the `\n` only with the next record.
struct LineCounter<'a> {
    rest: &'a [u8],
    byte: usize,
    line: u64,
}

impl<'a> LineCounter<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text.as_bytes(),
            byte: 0,
            line: 1,
        }
    }

    /// The line of the first byte from `byte` on that is not a line end; `byte` never falls.
    fn at(&mut self, byte: usize) -> u64 {
        while let Some((first, rest)) = self.rest.split_first()
            && (self.byte < byte || matches!(first, b'\r' | b'\n'))
        {
            self.line += u64::from(*first == b'\n');
            self.byte += 1;
            self.rest = rest;
        }
        self.line
    }
}

/// The separator that the header has most of, outside quotes.
fn guess_separator(text: &str) -> u8 {
    let header = text.lines().next().unwrap_or_default();
    let mut quoted = false;
    let mut counts = [(b',', 0), (b'\t', 0), (b';', 0)];
    for byte in header.bytes() {
        quoted ^= byte == b'"';
        if let Some((_, count)) = counts.iter_mut().find(|(separator, _)| *separator == byte && !quoted) {
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
            ("a;b;c\n,,,,", b';'),
            ("a\tb", b'\t'),
            ("text", b','),
            ("\"a;b\",c", b','),
        ];
        for (header, separator) in cases {
            assert_eq!(guess_separator(header), separator, "{header}");
        }
    }
}
