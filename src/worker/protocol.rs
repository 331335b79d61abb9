//! Messages between coordinator and trial process: one JSON object a line, on the process's standard streams.
//!
//! Both greet: the worker with [`ControlMessage::Hello`] as its first line, the coordinator with [`Request::Hello`] as
//! its own. Whoever finds that the other speaks another version ends the conversation and says so. From then on the worker
//! answers each trial with events until [`TrialEvent::Ended`], and tells every few seconds, from a thread of its own, that
//! it lives. End of its standard input asks it to stop at once. `docs/workers.md` tells the whole story.

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};

use super::{TrialEvent, TrialRequest};
use peft_tune_core::study::TrialNumber;
use peft_tune_kernels::Kernels;

/// Version of the protocol; both sides must agree.
pub const PROTOCOL_VERSION: u32 = 4;

/// Capabilities of this program's worker beside running trials of recipes.
pub const CAPABILITIES: [&str; 5] = ["cancel", "hold", "turns", "stop", "together"];

/// Message from coordinator to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// The first line of a coordinator.
    Hello {
        protocol: u32,
        /// Version of the program.
        version: String,
        /// Seconds between two heartbeats; none are sent where it is 0.
        heartbeat_s: f64,
        /// Whether profile phases wait for their turn, so that no neighbour on the same hardware computes meanwhile.
        take_turns: bool,
        /// Whether trials that come while another trains may train beside it, over one base model.
        #[serde(default)]
        together: bool,
    },
    /// Run a trial.
    Trial(Box<TrialRequest>),
    /// Stop this trial after the step it is in.
    Cancel { number: TrialNumber },
    /// Wait before the next step until [`Request::Resume`]; answered by [`ControlMessage::Held`] with the same turn.
    Hold { turn: u64 },
    /// Go on after a [`Request::Hold`].
    Resume,
    /// The profile phase of this trial may begin.
    Measure { number: TrialNumber },
    /// End the process after the trial under way.
    Stop,
}

/// Message from worker to coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Message {
    Control(ControlMessage),
    Trial(TrialEvent),
}

/// Messages that are not about a trial's progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ControlMessage {
    /// The first line of a worker.
    Hello {
        protocol: u32,
        /// Version of the program.
        version: String,
        #[serde(flatten)]
        about: Box<About>,
    },
    /// The process lives, whatever its computing thread does.
    Heartbeat {
        /// The trial under way.
        number: Option<TrialNumber>,
        /// Resident set size of the process, where the system tells.
        resident_bytes: Option<u64>,
    },
    /// The worker waits, as the [`Request::Hold`] of this turn asked.
    Held { turn: u64 },
    /// The profile phase of a trial is next and waits for [`Request::Measure`].
    ReadyToMeasure { number: TrialNumber },
    /// The process asked for more than its limit and ends. Bytes of the whole process.
    OutOfMemory {
        in_use_bytes: u64,
        requested_bytes: u64,
        limit_bytes: u64,
    },
    /// The last line of a worker that was asked to stop.
    Bye,
}

/// Facts that a worker tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct About {
    /// Process id on its own machine.
    pub process: u32,
    pub host: String,
    /// Device that the worker was given, or would take.
    pub device: String,
    /// Threads that the worker computes with.
    pub threads: usize,
    /// Processors that the worker is pinned to; empty where it is not.
    pub cpus: Vec<usize>,
    /// Form of the ops that the worker computes with.
    pub kernels: Kernels,
    /// Limiter that ends the process where a trial takes more memory than it may, beside the allocator's own count.
    pub memory_limiter: super::MemoryLimiter,
    /// Capabilities of the worker: see [`CAPABILITIES`].
    pub capabilities: Vec<String>,
}

/// JSON Schema of both directions of the protocol.
pub fn protocol_schema() -> Schema {
    #[derive(JsonSchema)]
    #[schemars(
        title = "peft-tune worker protocol",
        description = "One JSON object a line on standard streams."
    )]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Protocol {
        /// Line that the coordinator writes to the worker's standard input.
        request: Request,
        /// Line that the worker writes to its standard output.
        message: Message,
    }
    let mut schema = schema_for!(Protocol);
    schema.insert("version".to_owned(), PROTOCOL_VERSION.into());
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::Phase;

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

    #[test]
    fn the_greeting_of_another_version_is_understood_as_far_as_its_version() {
        let line = r#"{"event":"hello","protocol":1,"version":"0.1.0","new":[1]}"#;
        let Message::Control(ControlMessage::Hello { protocol, about, .. }) = serde_json::from_str(line).unwrap()
        else {
            panic!("a greeting")
        };
        assert_eq!((protocol, about.process), (1, 0));
    }

    #[test]
    fn the_schema_names_every_request_and_message() {
        let text = serde_json::to_string(&protocol_schema()).unwrap();
        for name in [
            "hello",
            "trial",
            "cancel",
            "hold",
            "resume",
            "measure",
            "stop",
            "heartbeat",
            "held",
            "ready_to_measure",
            "out_of_memory",
            "bye",
            "phase",
            "step",
            "evaluation",
            "measured",
            "training",
            "report",
            "ended",
            "lost",
        ] {
            assert!(text.contains(&format!("\"const\":\"{name}\"")), "{name}");
        }
    }
}
