//! Plain text, cut into pieces that can be held out one by one.
//!
//! A text file has no rows. It is cut at paragraph ends into pieces of a few kilobytes; the pieces that stay together
//! after the held-out ones are taken away are joined again before they are tokenised. The cut does not depend on the
//! sequence length, so trials of different length share one held-out set.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::{DataError, Record, RowLocation, Visitor, read_text};
use crate::data::Unit;
use crate::data::meter::Meter;

/// A piece ends at the first paragraph end after so many bytes ...
const PARAGRAPH_AFTER: usize = 2 * 1024;
/// ... or line end after so many ...
const LINE_AFTER: usize = 4 * 1024;
/// ... or anywhere after so many.
const ANYWHERE_AFTER: usize = 64 * 1024;

/// Reads the pieces of a file; line ends become `\n`.
pub(super) fn read(path: &Arc<Path>, meter: &Meter, visit: &mut Visitor) -> Result<(), DataError> {
    let mut text = read_text(path)?;
    if text.contains('\r') {
        text = text.replace("\r\n", "\n").replace('\r', "\n");
    }
    if text.trim().is_empty() {
        return Ok(());
    }
    let (mut rest, mut line) = (text.as_str(), 1);
    for piece in 0.. {
        let (head, tail) = rest.split_at(piece_end(rest));
        meter.pass(head.len() as u64);
        let record = Record::Text {
            text: head.to_owned(),
            piece,
            is_last: tail.is_empty(),
        };
        let flow = visit(RowLocation::new(path, Unit::Line, line), record)?;
        if tail.is_empty() || flow == ControlFlow::Break(()) {
            break;
        }
        line += head.bytes().filter(|byte| *byte == b'\n').count() as u64;
        rest = tail;
    }
    Ok(())
}

/// End of the first piece of `text`. A rest of white space alone is never left over.
fn piece_end(text: &str) -> usize {
    let after = |bytes: usize| text.ceil_char_boundary(bytes.min(text.len()));
    let find = |start: usize, pattern: &str, limit: usize| {
        let (start, limit) = (after(start), after(limit));
        let found = text.get(start..limit)?.find(pattern)?;
        Some(start + found + pattern.len())
    };
    let end = find(PARAGRAPH_AFTER, "\n\n", LINE_AFTER)
        .or_else(|| find(LINE_AFTER, "\n", ANYWHERE_AFTER))
        .unwrap_or_else(|| after(ANYWHERE_AFTER));
    // Blank lines go with the paragraph before them.
    let blank = text[end..].len() - text[end..].trim_start_matches('\n').len();
    let end = end + blank;
    if text[end..].trim().is_empty() { text.len() } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_end_with_paragraphs() {
        let paragraph = "word ".repeat(300) + "\n\n";
        let text = paragraph.repeat(4);
        assert_eq!(piece_end(&text), 2 * paragraph.len());
        assert_eq!(piece_end("short\n\n"), 7);
    }

    #[test]
    fn text_without_ends_is_cut_all_the_same() {
        let text = "é".repeat(100_000);
        let end = piece_end(&text);
        assert!((ANYWHERE_AFTER..ANYWHERE_AFTER + 4).contains(&end) && text.is_char_boundary(end));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn pieces_make_up_the_text(words in prop::collection::vec("[a-zé]{0,40}( |\n|\n\n)", 1..2000)) {
            let text = words.concat();
            let (mut rest, mut pieces) = (text.as_str(), 0);
            while !rest.is_empty() {
                let end = piece_end(rest);
                prop_assert!(end > 0 && rest.is_char_boundary(end));
                rest = &rest[end..];
                pieces += 1;
            }
            prop_assert!(pieces <= 1 + text.len() / PARAGRAPH_AFTER);
        }
    }
}
