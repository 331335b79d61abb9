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

use serde_json::Value;

const VARINT: u64 = 0;
const BYTES: u64 = 2;

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
        let mut version = Vec::new();
        text(&mut version, 1, concat!("peft-tune ", env!("CARGO_PKG_VERSION")));
        text(&mut version, 2, OLDEST);
        let mut header = Vec::new();
        bytes(&mut header, 1, &version);
        self.record(21, &header)
    }

    pub(super) fn run(&mut self, run: &Run<'_>) -> Vec<u8> {
        let mut message = Vec::new();
        text(&mut message, 1, run.id);
        text(&mut message, 3, run.project);
        let mut config = Vec::new();
        for (key, value) in run.config {
            bytes(&mut config, 1, &item((1, key), value));
        }
        bytes(&mut message, 4, &config);
        text(&mut message, 6, run.group);
        text(&mut message, 8, run.name);
        run.tags.iter().for_each(|tag| text(&mut message, 10, tag));
        let mut moment = Vec::new();
        number(&mut moment, 1, run.started_s.max(0.0) as u64);
        number(&mut moment, 2, (run.started_s.max(0.0).fract() * 1e9) as u64);
        bytes(&mut message, 17, &moment);
        self.record(17, &message)
    }

    /// A file of the run's folder `files`, to be sent when the run is.
    pub(super) fn file(&mut self, name: &str) -> Vec<u8> {
        let mut item = Vec::new();
        text(&mut item, 1, name);
        let mut message = Vec::new();
        bytes(&mut message, 1, &item);
        self.record(6, &message)
    }

    /// Values of one step.
    pub(super) fn history(&mut self, step: u64, values: &[(&str, Value)]) -> Vec<u8> {
        let mut message = Vec::new();
        for (key, value) in values {
            bytes(&mut message, 1, &item((2, key), value));
        }
        let mut number_of = Vec::new();
        number(&mut number_of, 1, step);
        bytes(&mut message, 2, &number_of);
        self.record(2, &message)
    }

    /// Values of the whole run.
    pub(super) fn summary(&mut self, values: &[(String, Value)]) -> Vec<u8> {
        let mut message = Vec::new();
        for (key, value) in values {
            bytes(&mut message, 1, &item((1, key), value));
        }
        self.record(3, &message)
    }

    pub(super) fn exit(&mut self, code: u64, seconds: f64) -> Vec<u8> {
        let mut message = Vec::new();
        number(&mut message, 1, code);
        number(&mut message, 2, seconds.max(0.0) as u64);
        self.record(18, &message)
    }

    fn record(&mut self, field: u64, content: &[u8]) -> Vec<u8> {
        self.written += 1;
        let mut record = Vec::new();
        number(&mut record, 1, self.written);
        bytes(&mut record, field, content);
        record
    }
}

/// A key in one of the two fields for it, and its value.
fn item((field, key): (u64, &str), value: &Value) -> Vec<u8> {
    let mut message = Vec::new();
    text(&mut message, field, key);
    text(&mut message, 16, &value.to_string());
    message
}

fn text(message: &mut Vec<u8>, field: u64, content: &str) {
    bytes(message, field, content.as_bytes());
}

fn bytes(message: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(message, field << 3 | BYTES);
    varint(message, content.len() as u64);
    message.extend(content);
}

fn number(message: &mut Vec<u8>, field: u64, value: u64) {
    // A zero is what an absent number means.
    if value > 0 {
        varint(message, field << 3 | VARINT);
        varint(message, value);
    }
}

/// Seven bits a byte, the lowest first; all bytes but the last have their top bit set.
fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
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
