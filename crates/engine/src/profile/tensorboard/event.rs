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

/// One number of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scalar<'a> {
    /// Name under which it is drawn; what stands before a slash is its group.
    pub tag: &'a str,
    pub value: f64,
}

pub(super) const VARINT: u64 = 0;
pub(super) const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// The first event of a file.
pub(super) fn version(wall_time_s: f64) -> Vec<u8> {
    let mut event = stamped(wall_time_s, 0);
    bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// Says that the training continues with the step after `step`: TensorBoard then forgets later steps of earlier files.
pub(super) fn session_start(wall_time_s: f64, step: u64) -> Vec<u8> {
    let mut session = Vec::new();
    key(&mut session, 1, VARINT);
    varint(&mut session, 1);
    let mut event = stamped(wall_time_s, step);
    bytes(&mut event, 7, &session);
    event
}

/// Numbers of one step.
pub(super) fn scalars(wall_time_s: f64, step: u64, scalars: &[Scalar<'_>]) -> Vec<u8> {
    let mut summary = Vec::new();
    for scalar in scalars {
        let mut value = Vec::new();
        bytes(&mut value, 1, scalar.tag.as_bytes());
        key(&mut value, 2, FIXED_32);
        value.extend((scalar.value as f32).to_le_bytes());
        bytes(&mut summary, 1, &value);
    }
    let mut event = stamped(wall_time_s, step);
    bytes(&mut event, 5, &summary);
    event
}

/// A summary whose only content is what the HParams plugin reads from it.
pub(super) fn plugin_data(wall_time_s: f64, tag: &str, content: &[u8]) -> Vec<u8> {
    /// A tensor of no floats: dtype DT_FLOAT and shape (0,).
    const NULL_TENSOR: [u8; 6] = [0x08, 0x01, 0x12, 0x02, 0x12, 0x00];
    let mut plugin = Vec::new();
    bytes(&mut plugin, 1, b"hparams");
    bytes(&mut plugin, 2, content);
    let mut metadata = Vec::new();
    bytes(&mut metadata, 1, &plugin);
    let mut value = Vec::new();
    bytes(&mut value, 1, tag.as_bytes());
    bytes(&mut value, 8, &NULL_TENSOR);
    bytes(&mut value, 9, &metadata);
    let mut summary = Vec::new();
    bytes(&mut summary, 1, &value);
    let mut event = stamped(wall_time_s, 0);
    bytes(&mut event, 5, &summary);
    event
}

fn stamped(wall_time_s: f64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, FIXED_64);
    event.extend(wall_time_s.to_le_bytes());
    // A zero is what an absent number means.
    if step > 0 {
        key(&mut event, 2, VARINT);
        varint(&mut event, step);
    }
    event
}

pub(super) fn key(message: &mut Vec<u8>, field: u64, wire_type: u64) {
    varint(message, field << 3 | wire_type);
}

pub(super) fn bytes(message: &mut Vec<u8>, field: u64, content: &[u8]) {
    key(message, field, BYTES);
    varint(message, content.len() as u64);
    message.extend(content);
}

/// Seven bits a byte, the lowest first; all bytes but the last have their top bit set.
pub(super) fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
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
