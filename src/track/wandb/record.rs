//! The records of a run, in protobuf's wire format (`wandb/proto/wandb_internal.proto`).
//!
//! | message | field | type | meaning |
//! |---|---|---|---|
//! | Record | 1 | int64 | number, from 1 |
//! | | 2, 3, 6 | message | HistoryRecord, SummaryRecord, FilesRecord |
//! | | 17, 18, 21 | message | RunRecord, RunExitRecord, HeaderRecord |
//! | HeaderRecord | 1 | VersionInfo | 1: who wrote it, 2: the oldest core that reads it |
//! | RunRecord | 1, 3, 6, 8 | string | id, project, group, name |
//! | | 4 | ConfigRecord | params |
//! | | 10 | string, repeated | tags |
//! | | 17 | Timestamp | when it began |
//! | HistoryRecord | 1, 2 | HistoryItem, HistoryStep | values, and the step (1) |
//! | FilesRecord | 1 | FilesItem, repeated | 1: path of the file |
//! | ConfigRecord, SummaryRecord | 1 | item, repeated | values |
//! | each item | 1, 2, 16 | string | key, path of a key (repeated), value as JSON |
//! | RunExitRecord | 1, 2 | int32 | exit code, seconds |

use peft_tune_core::protobuf::Message;
use serde_json::Value;

/// The oldest core that reads such records.
const OLDEST: &str = "0.70.0";

/// What a run is.
#[derive(Clone, Debug)]
pub(super) struct Run<'a> {
    pub id: &'a str,
    pub project: &'a str,
    pub group: &'a str,
    pub name: &'a str,
    pub config: &'a [(String, Value)],
    pub tags: &'a [String],
    /// Seconds since 1970.
    pub started_s: f64,
}

/// Records with their numbers.
#[derive(Debug, Default)]
pub(super) struct Records {
    written: u64,
}

impl Records {
    pub(super) fn header(&mut self) -> Vec<u8> {
        let version = Message::new()
            .text(1, concat!("peft-tune ", env!("CARGO_PKG_VERSION")))
            .text(2, OLDEST);
        self.record(21, &Message::new().message(1, &version))
    }

    pub(super) fn run(&mut self, run: &Run<'_>) -> Vec<u8> {
        let config = run.config.iter().map(|(key, value)| item(1, key, value));
        let started_s = run.started_s.max(0.0);
        let moment = Message::new()
            .number_unless_zero(1, started_s as u64)
            .number_unless_zero(2, (started_s.fract() * 1e9) as u64);
        let message = Message::new()
            .text(1, run.id)
            .text(3, run.project)
            .message(4, &Message::new().messages(1, config))
            .text(6, run.group)
            .text(8, run.name);
        let tags = run.tags.iter();
        let message = tags.fold(message, |message, tag| message.text(10, tag));
        self.record(17, &message.message(17, &moment))
    }

    /// A file of the run's folder `files`, to be sent when the run is.
    pub(super) fn file(&mut self, name: &str) -> Vec<u8> {
        let item = Message::new().text(1, name);
        self.record(6, &Message::new().message(1, &item))
    }

    /// Values of one step.
    pub(super) fn history(&mut self, step: u64, values: &[(&str, Value)]) -> Vec<u8> {
        let values = values.iter().map(|(key, value)| item(2, key, value));
        let step = Message::new().number_unless_zero(1, step);
        self.record(2, &Message::new().messages(1, values).message(2, &step))
    }

    /// Values of the whole run.
    pub(super) fn summary(&mut self, values: &[(String, Value)]) -> Vec<u8> {
        let values = values.iter().map(|(key, value)| item(1, key, value));
        self.record(3, &Message::new().messages(1, values))
    }

    pub(super) fn exit(&mut self, code: u64, seconds: f64) -> Vec<u8> {
        let message = Message::new()
            .number_unless_zero(1, code)
            .number_unless_zero(2, seconds.max(0.0) as u64);
        self.record(18, &message)
    }

    fn record(&mut self, field: u64, content: &Message) -> Vec<u8> {
        self.written += 1;
        let record = Message::new().number_unless_zero(1, self.written);
        record.message(field, content).into_bytes()
    }
}

/// A key in one of the two fields for it, and its value.
fn item(field: u64, key: &str, value: &Value) -> Message {
    Message::new().text(field, key).text(16, &value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn records_have_protobufs_bytes() {
        // Encoded by wandb 0.31.0's own `Record` class.
        let mut records = Records::default();
        records.header();
        let history = records.history(3, &[("train/loss", json!(0.5))]);
        assert_eq!(
            history,
            b"\x08\x02\x12\x18\x0a\x12\x12\x0atrain/loss\x82\x01\x030.5\x12\x02\x08\x03"
        );
    }
}
