//! Notes on rows beside their tokens: left out and why, columns that nothing reads, tokens that end answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::said::Said;
use super::{DataWarning, RowLocation};

/// How an answer ends, for the model to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Special token that the template writes.
    Written,
    /// Token that begins the next turn, at which generation stops.
    NextTurn(u32),
    /// Token that was put behind the row.
    Appended(u32),
    /// Ending at which generation does not stop.
    Nothing,
}

/// Notes on one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowNotes {
    /// Why the row is left out.
    pub refused: Option<&'static str>,
    /// How each of its answers ends.
    pub stops: Vec<Stop>,
    /// Facts about the row that users may not expect.
    pub said: Vec<Said>,
    /// Whether a tool that reads only the texts of its format would learn something else of it.
    pub is_beyond_texts: bool,
}

/// How many answers end in what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stops {
    written: u64,
    /// Answers that end in the beginning of the next turn, by its token.
    next_turn: BTreeMap<u32, u64>,
    appended: BTreeMap<u32, u64>,
    nothing: u64,
}

/// Rows that were left out for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refused {
    rows: u64,
    /// Location of the first of the rows.
    first: String,
}

/// Notes on one set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SetNotes {
    refused: BTreeMap<String, Refused>,
    stops: Stops,
    said: BTreeMap<Said, u64>,
    /// Rows of which a tool that reads only the texts of their format would learn something else.
    beyond_texts: u64,
}

/// Notes on all rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub train: SetNotes,
    pub held_out: SetNotes,
    /// Columns that nothing reads, with the number of rows that have something there.
    pub unread: BTreeMap<String, u64>,
}

impl SetNotes {
    pub(super) fn add(&mut self, location: &RowLocation, notes: RowNotes) {
        if let Some(reason) = notes.refused {
            let known = self.refused.entry(reason.to_owned());
            let refused = known.or_insert_with(|| Refused {
                rows: 0,
                first: location.to_string(),
            });
            refused.rows += 1;
        }
        for stop in notes.stops {
            match stop {
                Stop::Written => self.stops.written += 1,
                Stop::NextTurn(token) => *self.stops.next_turn.entry(token).or_default() += 1,
                Stop::Appended(token) => *self.stops.appended.entry(token).or_default() += 1,
                Stop::Nothing => self.stops.nothing += 1,
            }
        }
        for said in notes.said {
            *self.said.entry(said).or_default() += 1;
        }
        self.beyond_texts += u64::from(notes.is_beyond_texts);
    }

    /// Rows of which a tool that reads only the texts of their format would learn something else.
    pub(super) fn beyond_texts(&self) -> u64 {
        self.beyond_texts
    }

    /// Answers whose end is a token that the template does not write there, or none.
    pub(super) fn chosen_stops(&self) -> u64 {
        self.stops_learnt().1 - self.stops.written
    }

    /// Answers that end in a token at which generation stops, and all answers.
    pub(super) fn stops_learnt(&self) -> (u64, u64) {
        let stops = &self.stops;
        let chosen = stops.next_turn.values().chain(stops.appended.values()).sum::<u64>();
        (stops.written + chosen, stops.written + chosen + stops.nothing)
    }

    /// Rows that were left out for a reason that is told.
    pub(super) fn refused_rows(&self) -> u64 {
        self.refused.values().map(|refused| refused.rows).sum()
    }

    /// The reasons, in one line; empty where there are none.
    pub(super) fn reasons(&self) -> String {
        let one = |(reason, refused): (&String, &Refused)| {
            format!("; {} left out ({} first): their {reason}", refused.rows, refused.first)
        };
        self.refused.iter().map(one).collect()
    }

    /// Warnings of a set of this name and so many rows; `text_of` gives a token's text.
    pub(super) fn warnings(&self, set: &str, of: u64, text_of: &dyn Fn(u32) -> String) -> Vec<DataWarning> {
        let refused = self.refused.iter().map(|(reason, refused)| DataWarning::Refused {
            set: set.to_owned(),
            rows: refused.rows,
            of,
            reason: reason.clone(),
            first: refused.first.clone(),
        });
        let said = self.said.iter().map(|(said, rows)| DataWarning::Said {
            set: set.to_owned(),
            rows: *rows,
            said: *said,
        });
        let (stops, (_, answers)) = (&self.stops, self.stops_learnt());
        let ends = [(&stops.next_turn, true), (&stops.appended, false)];
        let ends = ends.into_iter().flat_map(|(tokens, is_next_turn)| {
            tokens.iter().map(move |(token, count)| DataWarning::StopChosen {
                set: set.to_owned(),
                answers: *count,
                of: answers,
                token: text_of(*token),
                is_next_turn,
            })
        });
        let nothing = (stops.nothing > 0).then(|| DataWarning::NoStopToken {
            set: set.to_owned(),
            answers: stops.nothing,
            of: answers,
        });
        refused.chain(said).chain(ends).chain(nothing).collect()
    }
}
