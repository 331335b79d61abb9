//! The messages of an event file, in protobuf's wire format (`tensorflow/core/util/event.proto`).
//!
//! | message | field | type | meaning |
//! |---|---|---|---|
//! | Event | 1 | double | wall time, seconds since 1970 |
//! | | 2 | int64 | step |
//! | | 3 | string | version of the file; its first event only |
//! | | 5 | Summary | scalars |
//! | | 7 | SessionLog | a training began or continued |
//! | Summary | 1 | Value, repeated | |
//! | Value | 1 | string | tag |
//! | | 2 | float | value |
//! | | 8 | TensorProto | none, where a plugin's data are all there is |
//! | | 9 | SummaryMetadata | which plugin's, and the data |
//! | SessionLog | 1 | enum | 1: start |

use peft_tune_core::protobuf::Message;

/// One number of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scalar<'a> {
    /// Name under which it is drawn; what stands before a slash is its group.
    pub tag: &'a str,
    pub value: f64,
}

/// The first event of a file.
pub(super) fn version(wall_time_s: f64) -> Vec<u8> {
    stamped(wall_time_s, 0).text(3, "brain.Event:2").into_bytes()
}

/// Says that the training continues with the step after `step`: TensorBoard then forgets later steps of earlier files.
pub(super) fn session_start(wall_time_s: f64, step: u64) -> Vec<u8> {
    let session = Message::new().number(1, 1);
    stamped(wall_time_s, step).message(7, &session).into_bytes()
}

/// Numbers of one step.
pub(super) fn scalars(wall_time_s: f64, step: u64, scalars: &[Scalar<'_>]) -> Vec<u8> {
    let value = |scalar: &Scalar<'_>| Message::new().text(1, scalar.tag).float(2, scalar.value as f32);
    let summary = Message::new().messages(1, scalars.iter().map(value));
    stamped(wall_time_s, step).message(5, &summary).into_bytes()
}

/// A summary whose only content is what the HParams plugin reads from it.
pub(super) fn plugin_data(wall_time_s: f64, tag: &str, content: &Message) -> Vec<u8> {
    // A tensor of no floats: dtype DT_FLOAT and shape (0,).
    let shape = Message::new().message(2, &Message::new());
    let tensor = Message::new().number(1, 1).message(2, &shape);
    let plugin = Message::new().text(1, "hparams").message(2, content);
    let metadata = Message::new().message(1, &plugin);
    let value = Message::new().text(1, tag).message(8, &tensor).message(9, &metadata);
    let summary = Message::new().message(1, &value);
    stamped(wall_time_s, 0).message(5, &summary).into_bytes()
}

fn stamped(wall_time_s: f64, step: u64) -> Message {
    Message::new().double(1, wall_time_s).number_unless_zero(2, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_protobufs_bytes() {
        // Encoded by tensorboard 2.21's own Event class.
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(version(1.5)), "09000000000000f83f1a0d627261696e2e4576656e743a32");
        assert_eq!(hex(session_start(1.5, 300)), "09000000000000f83f10ac023a020801");
        let scalar = Scalar {
            tag: "train/loss",
            value: 2.5,
        };
        assert_eq!(
            hex(scalars(1.5, 7, &[scalar])),
            "09000000000000f83f10072a130a110a0a747261696e2f6c6f73731500002040"
        );
    }
}
