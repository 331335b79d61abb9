//! Rows as they are seen: each with its tokens, and all in numbers.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::DataWarning;
use super::length_limit::LengthLimit;
use super::tokens::{NO_TARGET, TokenRow};

/// Rows that were seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RowsSeen {
    pub rows: Vec<ShownRow>,
    pub summary: RowsSummary,
    /// Micro-batches of the step, shown or not, where a step was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub micro_batches: Option<usize>,
    /// Warnings that users should know, one line each.
    pub warnings: Vec<DataWarning>,
}

/// One row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownRow {
    /// Number of the row, from 1, counted through the files.
    pub number: u64,
    /// File and line, or step and micro-batch.
    pub location: String,
    /// `training` or `held-out`; `None` where a part is held out that is not known yet.
    pub set: Option<String>,
    pub tokens: Vec<ShownToken>,
    /// Beginnings of documents behind the first, in tokens: attention does not reach over these places.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub boundaries: Vec<usize>,
    /// Tokens behind these, which are too many to be shown.
    pub hidden: usize,
    /// Tokens that are trained on: less than there are where the row is cut, none where it is left out for its length.
    pub kept: usize,
    /// Whether it is running text, which is split rather than cut.
    pub is_running: bool,
    /// Why it is left out.
    pub left_out: Option<String>,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownToken {
    pub id: u32,
    pub text: String,
    /// Whether its loss counts.
    pub target: bool,
    /// Role of the message that the token is of; `None` for what a template writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// All rows that were looked at, in numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RowsSummary {
    pub training: SetSummary,
    pub held_out: SetSummary,
    /// Whether these are all rows.
    pub is_whole: bool,
    pub sequence_length: usize,
    /// Formats of the files.
    pub formats: BTreeSet<String>,
    /// Source of the chat template; `None` where no row needs one.
    pub chat_template: Option<String>,
    /// Whether it marks answers itself.
    pub marks_answers: bool,
    pub columns: BTreeSet<String>,
    /// Columns that nothing reads, with the number of rows that hold something there.
    pub unread_columns: Vec<(String, u64)>,
    /// Answers that end in a token at which generation stops, and all answers; of chats.
    pub stops: (u64, u64),
}

/// The rows of a set in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetSummary {
    pub rows: u64,
    /// Rows with nothing to learn, or left out for a reason.
    pub left_out: u64,
    pub cut: u64,
    pub cut_tokens: u64,
    /// Tokens that are trained on, and those of them whose loss counts.
    pub tokens: u64,
    pub target_tokens: u64,
    pub longest: u64,
}

impl SetSummary {
    /// Counts a row; whether it is cut or split.
    pub(super) fn add(&mut self, row: Option<&TokenRow>, limit: LengthLimit) -> bool {
        self.rows += 1;
        let targets = row.map_or(0, |row| learnt(row, limit));
        let Some(row) = row.filter(|_| targets > 0) else {
            self.left_out += 1;
            return false;
        };
        let (kept, longest) = (kept_tokens(row, limit), longest_sequence(row));
        self.cut += u64::from(kept < row.ids.len());
        self.cut_tokens += (row.ids.len() - kept) as u64;
        self.tokens += kept as u64;
        self.target_tokens += targets as u64;
        self.longest = self.longest.max(longest as u64);
        longest > limit.tokens
    }
}

/// Targets of a row that are trained on: none of a pair one of whose answers has none.
pub(super) fn learnt(row: &TokenRow, limit: LengthLimit) -> usize {
    let targets = kept_sequences(row, limit).into_iter().map(|kept| {
        let labels = row.labels[kept].iter().skip(1);
        labels.filter(|label| **label != NO_TARGET).count()
    });
    let targets: Vec<usize> = targets.collect();
    match targets.contains(&0) {
        true => 0,
        false => targets.into_iter().sum(),
    }
}

/// Tokens of a row that are trained on.
pub(super) fn kept_tokens(row: &TokenRow, limit: LengthLimit) -> usize {
    kept_sequences(row, limit).iter().map(ExactSizeIterator::len).sum()
}

/// Tokens of the longest sequence of a row.
pub(super) fn longest_sequence(row: &TokenRow) -> usize {
    let lengths = row.sequences().into_iter().map(|sequence| sequence.len());
    lengths.max().unwrap_or_default()
}

/// Beginnings of a row's sequences that are trained on.
fn kept_sequences(row: &TokenRow, limit: LengthLimit) -> Vec<Range<usize>> {
    let is_left_out = limit.leaves_out(row.kind, longest_sequence(row));
    let kept = |sequence: Range<usize>| match is_left_out {
        true => sequence.start..sequence.start,
        false => sequence.start..sequence.start + limit.kept(row.kind, sequence.len()),
    };
    row.sequences().into_iter().map(kept).collect()
}
