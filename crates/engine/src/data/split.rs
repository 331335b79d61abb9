//! Split into training and held-out rows, and the pieces of plain text that stay together.

use super::RowLocation;
use super::example::Example;
use super::order::Permutation;
use peft_tune_core::recipe::HeldOut;

/// An example and where it stands.
pub(super) type Located = (RowLocation, Example);

/// Rows that are held out, by their number.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldOutRows {
    are_held_out: Vec<bool>,
}

impl HeldOutRows {
    /// A fraction of `rows`, as many as [`HeldOut::count_of`] says: which ones is decided by the seed and the number of rows alone.
    pub(super) fn new(rows: usize, fraction: f64, seed: u64) -> Self {
        let mut are_held_out = vec![false; rows];
        let count = HeldOut::Fraction(fraction).count_of(rows as u64) as usize;
        let order = Permutation::new(seed, HELD_OUT_STREAM, rows);
        (0..count).for_each(|position| are_held_out[order.at(position)] = true);
        Self { are_held_out }
    }

    /// Whether row `index` is one of them.
    pub(super) fn contain(&self, index: usize) -> bool {
        self.are_held_out.get(index).copied().unwrap_or(false)
    }
}

/// Keeps this order apart from the epochs'.
const HELD_OUT_STREAM: u64 = u64::MAX;

/// Joins the pieces of a plain text file that still follow one another.
#[derive(Debug, Default)]
pub(super) struct PieceJoiner {
    run: Option<Located>,
    last_piece: u64,
}

impl PieceJoiner {
    /// Takes the next example, and gives back one that nothing can follow. The run that ends with a row which is no piece
    /// goes first: files have either.
    pub(super) fn push(&mut self, (location, example): Located) -> Option<Located> {
        let Example::Text(text) = &example else {
            return self.pass((location, example));
        };
        let Some(piece) = text.piece else {
            return self.pass((location, example));
        };
        let follows = piece == self.last_piece + 1;
        self.last_piece = piece;
        match &mut self.run {
            Some((before, Example::Text(run))) if follows && before.is_same_file(&location) => {
                run.text.push_str(&text.text);
                run.is_last = text.is_last;
                None
            }
            run => run.replace((location, example)),
        }
    }

    /// The run that is left.
    pub(super) fn rest(&mut self) -> Option<Located> {
        self.run.take()
    }

    /// An example that joins nothing.
    fn pass(&mut self, located: Located) -> Option<Located> {
        debug_assert!(
            self.run.is_none(),
            "a file's pieces are taken before the next file begins"
        );
        Some(located)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::example::RunningText;
    use super::*;
    use crate::data::Unit;

    #[test]
    fn pieces_are_joined_across_no_gap() {
        let path = Path::new("a.txt").into();
        let piece = |number: u64| {
            let text = RunningText {
                text: number.to_string(),
                piece: Some(number),
                is_last: number == 9,
            };
            (RowLocation::new(&path, Unit::Line, number), Example::Text(text))
        };
        let mut joiner = PieceJoiner::default();
        let mut joined: Vec<Located> = [0, 1, 3, 4, 5, 9]
            .into_iter()
            .filter_map(|number| joiner.push(piece(number)))
            .collect();
        joined.extend(joiner.rest());
        let texts: Vec<(String, bool)> = joined
            .into_iter()
            .map(|(_, example)| match example {
                Example::Text(text) => (text.text, text.is_last),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [("01", false), ("345", false), ("9", true)];
        assert_eq!(texts, expected.map(|(text, last)| (text.to_owned(), last)));
    }

    #[test]
    fn the_held_out_rows_stay_the_same() {
        let chosen = |rows, fraction, seed| {
            let chosen = HeldOutRows::new(rows, fraction, seed);
            (0..rows).filter(|row| chosen.contain(*row)).collect::<Vec<_>>()
        };
        assert_eq!(chosen(100, 0.1, 5).len(), 10);
        assert_eq!(chosen(100, 0.1, 5), chosen(100, 0.1, 5));
        assert_ne!(chosen(100, 0.1, 5), chosen(100, 0.1, 6));
        assert_eq!(chosen(2, 0.001, 0).len(), 1);
        assert_eq!(chosen(1, 0.5, 0), [0; 0]);
    }
}
