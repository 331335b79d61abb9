//! Place in a file where something is wrong.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A position in a file, with the key that stands there.
#[derive(Clone, PartialEq, Eq)]
pub struct Span {
    /// The file as it was named to the program.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Dotted path of the key, such as `space.rank.low`; empty for the file as a whole.
    pub key: String,
    /// Bytes of `text` to point at.
    pub span: Range<usize>,
    /// The whole file.
    pub text: Arc<str>,
}

impl Span {
    /// The place of `span` within `text`; a span past the end points at the end.
    pub fn new(path: &Path, text: &Arc<str>, span: Range<usize>, key: String) -> Self {
        let start = text.floor_char_boundary(span.start);
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key,
            span: start..text.floor_char_boundary(span.end.max(start)),
            text: Arc::clone(text),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}:{}", self.path.display(), self.line, self.column)
    }
}

/// Leaves the file's text out, which would drown the rest.
impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self} `{}`", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let text: Arc<str> = "a: 1\nä: ü2\n".into();
        let at = |start| {
            let place = Span::new(Path::new("f.yaml"), &text, start..start + 1, String::new());
            (place.line, place.column)
        };
        assert_eq!((at(0), at(5), at(8)), ((1, 1), (2, 1), (2, 3)));
        assert_eq!(at(10), (2, 4));
        assert_eq!(at(99), (3, 1));
    }
}
