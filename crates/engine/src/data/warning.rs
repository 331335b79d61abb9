//! Warnings about data that is used all the same.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::said::Said;

/// Something odd about data that can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "warning")]
pub enum DataWarning {
    /// Rows without text, completion or answer.
    Empty { set: String, rows: u64, of: u64 },
    /// Rows without any target, whatever the sequence length.
    NoTarget { set: String, rows: u64, of: u64 },
    /// Rows none of whose targets lies within the sequence length.
    Dropped {
        set: String,
        rows: u64,
        of: u64,
        sequence_length: usize,
    },
    /// Rows that are left out as they are longer than the sequence length.
    TooLong {
        set: String,
        rows: u64,
        of: u64,
        sequence_length: usize,
    },
    /// Rows whose end was cut away.
    Cut {
        set: String,
        rows: u64,
        of: u64,
        /// Tokens cut away.
        tokens: u64,
        sequence_length: usize,
    },
    /// Rows that are left out for what they hold, or for what the chat template does.
    Refused {
        set: String,
        rows: u64,
        of: u64,
        /// Reason in words that follow `their`.
        reason: String,
        /// Location of the first of the rows.
        first: String,
    },
    /// Something that holds of rows which are used.
    Said { set: String, rows: u64, said: Said },
    /// Columns that nothing reads, with the number of rows that hold something there.
    Unread { columns: Vec<(String, u64)> },
    /// Answers whose end the template does not write, and what stands for it.
    StopChosen {
        set: String,
        answers: u64,
        of: u64,
        token: String,
        is_next_turn: bool,
    },
    /// Answers behind which the model does not learn to stop.
    NoStopToken { set: String, answers: u64, of: u64 },
    /// A held-out file that is trained on.
    HeldOutIsTrained { path: PathBuf },
    /// The tokenizer names no end-of-document token.
    NoEndOfDocument,
    /// The tokenised cache cannot be written.
    CacheNotWritten { folder: PathBuf, reason: String },
}

impl DataWarning {
    /// Whether it counts rows that are left out or cut.
    pub(super) fn counts_rows(&self) -> bool {
        matches!(
            self,
            Self::Empty { .. } | Self::Dropped { .. } | Self::TooLong { .. } | Self::Cut { .. } | Self::Refused { .. }
        )
    }
}

impl fmt::Display for DataWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { set, rows, of } => {
                write!(f, "{rows} of {of} {set} rows hold nothing to learn and are left out")
            }
            Self::NoTarget { set, rows, of } => write!(
                f,
                "{rows} of {of} {set} rows have no target at all (every label behind the first token is -100) and are left \
                 out"
            ),
            Self::Dropped {
                set,
                rows,
                of,
                sequence_length,
            } => write!(
                f,
                "{rows} of {of} {set} rows are left out: their answers begin after {sequence_length} tokens; raise \
                 `sequence_length` to use them"
            ),
            Self::TooLong {
                set,
                rows,
                of,
                sequence_length,
            } => write!(
                f,
                "{rows} of {of} {set} rows are left out: they are longer than {sequence_length} tokens \
                 (`long_rows: drop`); raise `sequence_length` to use them"
            ),
            Self::Cut {
                set,
                rows,
                of,
                tokens,
                sequence_length,
            } => write!(
                f,
                "{rows} of {of} {set} rows are cut to {sequence_length} tokens ({tokens} tokens lost); raise \
                 `sequence_length` to keep them"
            ),
            Self::Refused {
                set,
                rows,
                of,
                reason,
                first,
            } => write!(
                f,
                "{rows} of {of} {set} rows are left out ({first} first): their {reason}"
            ),
            Self::Said { set, rows, said } => write!(f, "{rows} {set} rows {said}"),
            Self::Unread { columns } => {
                let listed: Vec<String> = columns
                    .iter()
                    .map(|(name, rows)| format!("`{name}` ({rows} rows)"))
                    .collect();
                write!(f, "columns that are not used: {}", listed.join(", "))
            }
            Self::StopChosen {
                set,
                answers,
                of,
                token,
                is_next_turn,
            } => {
                let how = match is_next_turn {
                    true => "which begins the next turn",
                    false => "which is put behind them",
                };
                write!(
                    f,
                    "the chat template writes no end of {answers} of {of} {set} answers: `{token}` is learnt as it, {how}"
                )
            }
            Self::NoStopToken { set, answers, of } => write!(
                f,
                "{answers} of {of} {set} answers end in no token at which generation stops: the model does not learn to stop \
                 there; use a chat template that writes one"
            ),
            Self::HeldOutIsTrained { path } => write!(
                f,
                "{} is both training and held-out data, so the loss says nothing about new text; use another file, or \
                 a fraction as `data.held_out`",
                path.display()
            ),
            Self::NoEndOfDocument => write!(
                f,
                "the tokenizer names no `eos_token`, so the model cannot learn where a document ends; add it to \
                 tokenizer_config.json"
            ),
            Self::CacheNotWritten { folder, reason } => write!(
                f,
                "the tokenised cache in {} cannot be written ({reason}); the data is tokenised again next time",
                folder.display()
            ),
        }
    }
}
