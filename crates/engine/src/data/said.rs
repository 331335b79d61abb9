//! [`Said`]: facts about rows that users may not expect.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tokenizer::told_day;

/// Fact about a row that users may not expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Tools of the row are not written by the chat template.
    ToolsNotWritten,
    /// Calls of the row are written as text.
    CallsAsText,
    /// Messages that are no answers ask to be learnt.
    AskedToLearn,
    /// The column `system` stands beside another text of the system.
    TwoSystems,
    /// Arguments of calls came as JSON text, and the chat template writes them in quotes.
    ArgumentsQuoted,
    /// Reasoning of the row is not written by the chat template.
    ReasoningDropped,
    /// The chat template asks for the day and is told a fixed one.
    FixedDay,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::ToolsNotWritten => "have `tools` that the chat template does not write: the model does not see them",
            Self::CallsAsText => {
                "have function calls that the chat template does not write: they are trained as the text they came as"
            }
            Self::AskedToLearn => "have messages that ask to be learnt and are no answers: they are not",
            Self::TwoSystems => "have a `system` column beside a system message: the message counts",
            Self::ArgumentsQuoted => {
                "have calls whose `arguments` are JSON text, which the chat template writes in quotes and with backslashes: \
                 write them as objects"
            }
            Self::ReasoningDropped => {
                "have reasoning that the chat template does not write, such as that of earlier turns: it is not trained"
            }
            Self::FixedDay => {
                let day = told_day();
                return write!(
                    f,
                    "have a chat template that asks for the day: it is told {day} on any day, so that tokens stay the same"
                );
            }
        };
        f.write_str(text)
    }
}
