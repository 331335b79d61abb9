//! What coordinator and trial process say to each other: one JSON object a line, on the process's standard streams.
//!
//! The worker greets with [`Message::Hello`], then answers each request with events until [`TrialEvent::Ended`]. End of
//! its standard input asks it to stop. A worker that passes its memory limit prints [`Message::OutOfMemory`] from
//! inside the allocator and is gone.

use serde::{Deserialize, Serialize};

use super::{TrialEvent, TrialRequest};
use crate::study::TrialNumber;

/// Version of the protocol; both sides must agree.
pub const PROTOCOL_VERSION: u32 = 1;

/// From coordinator to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// Run a trial.
    Trial(Box<TrialRequest>),
    /// Stop this trial after the step it is in.
    Cancel { number: TrialNumber },
}

/// From worker to coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Message {
    Control(ControlMessage),
    Trial(TrialEvent),
}

/// Messages that are not about a trial's progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ControlMessage {
    /// The first line of a worker.
    Hello { protocol: u32, version: String },
    /// The process asked for more than its limit and ends. Bytes of the whole process.
    OutOfMemory {
        in_use_bytes: u64,
        requested_bytes: u64,
        limit_bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Phase;

    #[test]
    fn the_line_of_the_allocator_is_understood() {
        let line = r#"{"event":"out_of_memory","in_use_bytes":3,"requested_bytes":2,"limit_bytes":4}"#;
        let message: Message = serde_json::from_str(line).unwrap();
        let expected = ControlMessage::OutOfMemory {
            in_use_bytes: 3,
            requested_bytes: 2,
            limit_bytes: 4,
        };
        assert_eq!(message, Message::Control(expected));
    }

    #[test]
    fn trial_events_survive_a_line() {
        let message = Message::Trial(TrialEvent::Phase {
            number: TrialNumber(7),
            phase: Phase::Train,
        });
        let line = serde_json::to_string(&message).unwrap();
        assert_eq!(line, r#"{"event":"phase","number":7,"phase":"train"}"#);
        assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
    }
}
