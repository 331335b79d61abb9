//! One training example as text: what all formats become.

use serde_json::{Map, Value};

use super::said::Said;

/// One example, before it is tokenised.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Example {
    /// Running text, every token of which is a target. Split rather than cut where it is too long.
    Text(RunningText),
    /// A prompt and what should follow it.
    Completion { prompt: String, completion: String },
    /// A chat for the chat template.
    Chat(Chat),
    /// Tokens from another tokenising run.
    Tokenized {
        ids: Vec<i64>,
        /// Labels as many as `ids`, where present; -100 is not a target.
        labels: Option<Vec<i64>>,
    },
    /// Answers that are compared.
    Preference(Box<Preference>),
    /// A row that says of itself that it is not to be learnt; why, in words that follow `their`.
    Refused(&'static str),
}

impl Example {
    /// Whether a chat template writes it.
    pub(super) fn is_chat(&self) -> bool {
        match self {
            Self::Chat(_) => true,
            Self::Preference(row) => row.sequences.iter().any(Self::is_chat),
            Self::Text(_) | Self::Completion { .. } | Self::Tokenized { .. } | Self::Refused(_) => false,
        }
    }
}

/// A text, or a piece of a longer one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunningText {
    pub text: String,
    /// Number of the piece in its file; `None` for a text that stands alone.
    pub piece: Option<u64>,
    /// Whether the document ends here.
    pub is_last: bool,
}

/// A conversation, its messages as the chat template wants them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chat {
    /// Objects with `role` and `content`.
    pub messages: Vec<Value>,
    pub tools: Option<Value>,
    /// Whether each message is an answer to learn.
    pub targets: Vec<bool>,
    /// Texts that the calls of each message came as.
    pub call_texts: Vec<Option<String>>,
    /// Facts about the messages that users may not expect.
    pub said: Vec<Said>,
    /// Whether the row holds roles and texts and nothing else, and all of its answers are learnt.
    pub is_plain: bool,
}

/// One row of preferences.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Preference {
    /// Sequences that go through the model: the prompt with each of its answers.
    pub sequences: Vec<Example>,
    /// Columns of the row as trainers of preferences read them.
    pub row: Map<String, Value>,
}
