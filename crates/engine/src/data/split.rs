//! Reading examples, and holding some out.

use std::ops::ControlFlow;
use std::path::PathBuf;

use super::example::Example;
use super::format::RowParser;
use super::order::Permutation;
use super::readers::read_rows;
use super::{DataError, RowLocation, progress};
use peft_tune_core::recipe::DataSettings;

/// An example and where it stands.
pub(super) type Located = (RowLocation, Example);

/// Reads the examples of `files`, at most `limit`.
pub(super) fn read_examples(
    files: &[PathBuf],
    settings: &DataSettings,
    has_chat_template: bool,
    limit: Option<usize>,
) -> Result<Vec<Located>, DataError> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut examples = Vec::new();
    for path in files {
        let before = examples.len();
        if before >= limit {
            break;
        }
        let mut parser = RowParser::new(settings.format, &settings.columns, has_chat_template);
        read_rows(path, &mut |location, record| {
            let example = parser.parse(&location, record)?;
            progress::count();
            examples.push((location, example));
            Ok(if examples.len() < limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        if examples.len() == before {
            return Err(DataError::NoRows { path: path.clone() });
        }
    }
    Ok(examples)
}

/// Takes a fraction of the examples out, at least one and not all: which ones is decided by the seed and their number
/// alone. Both parts stay in order.
pub(super) fn hold_out(
    examples: Vec<Located>,
    fraction: f64,
    seed: u64,
) -> Result<(Vec<Located>, Vec<Located>), DataError> {
    let rows = examples.len();
    if rows < 2 {
        return Err(DataError::TooFewRows { rows });
    }
    let count = ((rows as f64 * fraction).round() as usize).clamp(1, rows - 1);
    let order = Permutation::new(seed, HELD_OUT_STREAM, rows);
    let mut is_held_out = vec![false; rows];
    (0..count).for_each(|position| is_held_out[order.at(position)] = true);
    let (mut train, mut held_out) = (Vec::with_capacity(rows - count), Vec::with_capacity(count));
    for (example, is_held_out) in examples.into_iter().zip(is_held_out) {
        if is_held_out { &mut held_out } else { &mut train }.push(example);
    }
    Ok((train, held_out))
}

/// Keeps this order apart from the epochs'.
const HELD_OUT_STREAM: u64 = u64::MAX;

/// Joins the pieces of a plain text file that still follow one another.
pub(super) fn join_pieces(examples: Vec<Located>) -> Vec<Located> {
    let mut joined: Vec<Located> = Vec::with_capacity(examples.len());
    let mut last_piece = None;
    for (location, example) in examples {
        let piece = match &example {
            Example::Text(text) => text.piece,
            _ => None,
        };
        if let (Some((before, Example::Text(run))), Example::Text(text)) = (joined.last_mut(), &example)
            && before.is_same_file(&location)
            && piece.is_some()
            && piece == last_piece.map(|last: u64| last + 1)
        {
            run.text.push_str(&text.text);
            run.is_last = text.is_last;
        } else {
            joined.push((location, example));
        }
        last_piece = piece;
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::example::RunningText;
    use super::*;
    use crate::data::Unit;

    fn pieces(numbers: &[u64]) -> Vec<Located> {
        let path = Path::new("a.txt").into();
        let piece = |number: &u64| {
            let text = RunningText {
                text: number.to_string(),
                piece: Some(*number),
                is_last: *number == 9,
            };
            (RowLocation::new(&path, Unit::Line, *number), Example::Text(text))
        };
        numbers.iter().map(piece).collect()
    }

    #[test]
    fn pieces_are_joined_across_no_gap() {
        let joined: Vec<(String, bool)> = join_pieces(pieces(&[0, 1, 3, 4, 5, 9]))
            .into_iter()
            .map(|(_, example)| match example {
                Example::Text(text) => (text.text, text.is_last),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [("01", false), ("345", false), ("9", true)];
        assert_eq!(joined, expected.map(|(text, last)| (text.to_owned(), last)));
    }

    #[test]
    fn the_parts_are_disjoint_and_stay_the_same() {
        let numbers: Vec<u64> = (0..100).collect();
        let (train, held_out) = hold_out(pieces(&numbers), 0.1, 5).unwrap();
        assert_eq!((train.len(), held_out.len()), (90, 10));
        assert!(held_out.iter().all(|example| !train.contains(example)));
        assert_eq!(hold_out(pieces(&numbers), 0.1, 5).unwrap().1, held_out);
        assert_ne!(hold_out(pieces(&numbers), 0.1, 6).unwrap().1, held_out);
        assert_eq!(hold_out(pieces(&[1, 2]), 0.001, 0).unwrap().1.len(), 1);
        assert!(hold_out(pieces(&[1]), 0.5, 0).is_err());
    }
}
