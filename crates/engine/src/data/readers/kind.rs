//! Kinds of data files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::lone_object::LoneObject;
use super::{BOM, DataError};

/// A kind of data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    JsonLines,
    Json,
    /// Fields with a separator; `None` where the header must tell which.
    Separated(Option<u8>),
    Parquet,
    PlainText,
}

/// Enough bytes to tell kinds apart.
const HEAD_BYTES: u64 = 64 * 1024;

impl FileKind {
    /// Tells the kind by the name's ending; JSON is told from JSONL where the name does not, and unknown endings from
    /// each other, by the content.
    pub(super) fn of(path: &Path) -> Result<Self, DataError> {
        let read_error = |source| DataError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read_error)?;
        if file.metadata().map_err(read_error)?.is_dir() {
            return Err(read_error(std::io::ErrorKind::IsADirectory.into()));
        }
        let mut head = Vec::new();
        file.take(HEAD_BYTES).read_to_end(&mut head).map_err(read_error)?;
        let head = head.strip_prefix(BOM).unwrap_or(&head);
        let extension = path
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .to_ascii_lowercase();
        Ok(match extension.as_str() {
            "parquet" | "pq" => Self::Parquet,
            "csv" => Self::Separated(None),
            "tsv" => Self::Separated(Some(b'\t')),
            "txt" | "text" | "md" => Self::PlainText,
            "jsonl" | "ndjson" => Self::of_lines(head),
            "json" => Self::of_json(head),
            _ if head.starts_with(b"PAR1") => Self::Parquet,
            _ if is_json(head) => Self::of_json(head),
            _ => Self::PlainText,
        })
    }

    /// An object on the only line may be a wrapper around the rows; else as for lines.
    fn of_json(head: &[u8]) -> Self {
        let (first, rest) = split_line(head.trim_ascii_start());
        let is_cut = rest.is_empty() && head.len() as u64 == HEAD_BYTES;
        match rest.trim_ascii().is_empty() && !is_cut && is_around_rows(first) {
            true => Self::Json,
            false => Self::of_lines(head),
        }
    }

    /// A list starts with `[`. An object is a whole document where the first line does not hold all of it; otherwise each line is a
    /// row.
    fn of_lines(head: &[u8]) -> Self {
        let start = head.trim_ascii_start();
        if start.starts_with(b"[") {
            return Self::Json;
        }
        let (first, rest) = split_line(start);
        let is_complete = serde_json::from_slice::<serde_json::Value>(first).is_ok();
        let is_cut = rest.is_empty() && head.len() as u64 == HEAD_BYTES;
        // A first line that is not a whole object: a document over several lines, unless the object simply continues
        // beyond what was looked at, or is a broken row whose followers are rows.
        let next_is_a_row = rest.trim_ascii_start().starts_with(b"{") && !first.trim_ascii_end().ends_with(b"[");
        if is_complete || is_cut || next_is_a_row {
            Self::JsonLines
        } else {
            Self::Json
        }
    }
}

fn split_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// Whether a text is an object around a list of rows, and no row itself.
fn is_around_rows(text: &[u8]) -> bool {
    match serde_json::from_slice(text) {
        Ok(serde_json::Value::Object(object)) => {
            matches!(LoneObject::of(&object), LoneObject::Wrapper(_) | LoneObject::Unclear(_))
        }
        _ => false,
    }
}

/// Whether text of an unknown ending is JSON: it begins as an object or a list of objects does.
fn is_json(head: &[u8]) -> bool {
    let mut rest = head.trim_ascii_start();
    if let Some(inner) = rest.strip_prefix(b"[") {
        rest = inner.trim_ascii_start();
    }
    let Some(inner) = rest.strip_prefix(b"{") else {
        return false;
    };
    matches!(inner.trim_ascii_start().first(), Some(b'"' | b'}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_documents_are_told_from_lines() {
        let cases: [(&[u8], FileKind); 8] = [
            (b" [\n{}]", FileKind::Json),
            (b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", FileKind::JsonLines),
            (b"{\"text\": \"a\"}", FileKind::JsonLines),
            (b"{\"data\": [{\"text\": \"a\"}]}\n", FileKind::Json),
            (b"{\"messages\": [{\"role\": \"user\"}]}\n", FileKind::JsonLines),
            (b"{\n \"data\": [\n {}]}", FileKind::Json),
            (b"{\"a\": \n{\"text\": \"b\"}\n", FileKind::JsonLines),
            (b"", FileKind::Json),
        ];
        for (text, kind) in cases {
            assert_eq!(FileKind::of_json(text), kind, "{}", String::from_utf8_lossy(text));
        }
        let row_with_tools = b"{\"messages\": [{\"role\": \"user\"}], \"tools\": [{\"type\": \"function\"}]}\n";
        assert_eq!(FileKind::of_json(row_with_tools), FileKind::JsonLines);
        // The name says that lines are rows.
        assert_eq!(FileKind::of_lines(b"{\"steps\": [{\"a\": 1}]}\n"), FileKind::JsonLines);
        assert_eq!(FileKind::of_json(b"{\"steps\": [{\"a\": 1}]}\n"), FileKind::Json);
        assert_eq!(FileKind::of_lines(b"[{\"a\": 1}]"), FileKind::Json);
    }

    #[test]
    fn unknown_endings_are_told_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            FileKind::of(&path).unwrap()
        };
        assert_eq!(kind("a", b"PAR1..."), FileKind::Parquet);
        assert_eq!(kind("b", b"\xef\xbb\xbf{\"text\": \"a\"}\n"), FileKind::JsonLines);
        assert_eq!(kind("c.data", b"[{ \"text\": 1}]"), FileKind::Json);
        assert_eq!(kind("d", b"Once upon a time"), FileKind::PlainText);
        assert_eq!(kind("e", b"{curly} text"), FileKind::PlainText);
        assert_eq!(kind("f.CSV", b"{"), FileKind::Separated(None));
    }
}
