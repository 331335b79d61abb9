//! Event files of other programs, read while they grow.
//!
//! Beside the fields that `event` writes, a value may be a tensor of one number:
//!
//! | message | field | type | meaning |
//! |---|---|---|---|
//! | TensorProto | 1 | enum | 1: float, 2: double |
//! | | 4 | bytes | the number, little-endian |
//! | | 5 | float, repeated | the same, written as a number |
//! | | 6 | double, repeated | the same |

use super::crc32c::masked;
use peft_tune_core::protobuf::{FieldValue, fields};

/// Content above which a record holds pictures or the like, and is passed over.
const LONGEST: u64 = 1 << 20;
/// Bytes before and behind the content.
const FRAMING: u64 = 16;

/// One number of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarEvent {
    /// Seconds since 1970.
    pub wall_time_s: f64,
    pub step: u64,
    pub tag: String,
    pub value: f64,
}

/// A record whose checksum or content is wrong: what follows cannot be told from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record is broken at byte {at}")]
pub struct BrokenRecord {
    pub at: u64,
}

/// Reads one file in pieces of any length.
#[derive(Clone, Debug, Default)]
pub struct EventReader {
    /// The beginning of a record whose end has not come.
    begun: Vec<u8>,
    /// Bytes of a long record that are still to be passed over.
    passing: u64,
    /// Place in the file of the first byte in `begun`.
    at: u64,
}

impl EventReader {
    /// Takes the next bytes of the file, and hands on each number in them.
    ///
    /// # Errors
    /// A broken record. The reader is of no use from then on.
    pub fn take(&mut self, bytes: &[u8], mut each: impl FnMut(ScalarEvent)) -> Result<(), BrokenRecord> {
        let passed = self.passing.min(bytes.len() as u64);
        self.passing -= passed;
        self.at += passed;
        self.begun.extend(&bytes[passed as usize..]);
        let mut from = 0;
        while let Some(head) = self.begun[from..].first_chunk::<12>() {
            let broken = BrokenRecord {
                at: self.at + from as u64,
            };
            let (length, sum) = parts(head);
            if masked(&head[..8]) != sum {
                return Err(broken);
            }
            let here = (self.begun.len() - from) as u64;
            if length > LONGEST {
                let whole = length.saturating_add(FRAMING);
                self.passing = whole.saturating_sub(here);
                from += whole.min(here) as usize;
                continue;
            }
            if length + FRAMING > here {
                break;
            }
            let content = from + 12..from + 12 + length as usize;
            let sum = self.begun[content.end..]
                .first_chunk::<4>()
                .copied()
                .unwrap_or_default();
            from = content.end + 4;
            let content = &self.begun[content];
            if masked(content) != u32::from_le_bytes(sum) {
                return Err(broken);
            }
            for event in scalars(content).ok_or(broken)? {
                each(event);
            }
        }
        self.begun.drain(..from);
        self.at += from as u64;
        Ok(())
    }
}

/// Length and checksum of the length at the head of a record.
fn parts(head: &[u8; 12]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, sum @ ..] = *head;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes(sum))
}

/// The numbers of an event; `None` where the bytes are no message.
fn scalars(content: &[u8]) -> Option<Vec<ScalarEvent>> {
    let (mut wall_time_s, mut step, mut summaries) = (0.0, 0, Vec::new());
    for field in fields(content)? {
        match field {
            (1, FieldValue::Fixed64(bits)) => wall_time_s = f64::from_bits(bits),
            (2, FieldValue::Number(number)) => step = number,
            (5, FieldValue::Content(summary)) => summaries.push(summary),
            _ => {}
        }
    }
    let mut events = Vec::new();
    for summary in summaries {
        for field in fields(summary)? {
            if let (1, FieldValue::Content(value)) = field
                && let Some((tag, value)) = scalar(value)
            {
                events.push(ScalarEvent {
                    wall_time_s,
                    step,
                    tag,
                    value,
                });
            }
        }
    }
    Some(events)
}

/// Tag and number of a value; `None` of a value that is no number.
fn scalar(value: &[u8]) -> Option<(String, f64)> {
    let (mut tag, mut number) = (None, None);
    for field in fields(value)? {
        match field {
            (1, FieldValue::Content(text)) => tag = Some(String::from_utf8_lossy(text).into_owned()),
            (2, FieldValue::Fixed32(bits)) => number = Some(f64::from(f32::from_bits(bits))),
            (8, FieldValue::Content(tensor)) => number = number.or(tensor_number(tensor)),
            _ => {}
        }
    }
    tag.zip(number)
}

/// The number of a tensor that holds one.
fn tensor_number(tensor: &[u8]) -> Option<f64> {
    let (mut kind, mut number, mut packed) = (0, None, None);
    for field in fields(tensor)? {
        match field {
            (1, FieldValue::Number(named)) => kind = named,
            (4..=6, FieldValue::Content(content)) => packed = Some(content),
            (5, FieldValue::Fixed32(bits)) => number = Some(f64::from(f32::from_bits(bits))),
            (6, FieldValue::Fixed64(bits)) => number = Some(f64::from_bits(bits)),
            _ => {}
        }
    }
    let unpacked = packed.and_then(|content| match kind {
        1 => content
            .try_into()
            .ok()
            .map(|bytes| f64::from(f32::from_le_bytes(bytes))),
        2 => content.try_into().ok().map(f64::from_le_bytes),
        _ => None,
    });
    number.or(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of hexadecimal digits.
    fn bytes(digits: &str) -> Vec<u8> {
        let digit = |place: usize| u8::from_str_radix(&digits[place..place + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(digit).collect()
    }

    /// A file with the version and one loss, whose contents tensorboard 2.21 has encoded; the checksums are those of the
    /// bitwise definition of CRC-32C.
    fn file() -> Vec<u8> {
        let contents = [
            "09000000000000f83f1a0d627261696e2e4576656e743a32",
            "09000000000000f83f10072a130a110a0a747261696e2f6c6f73731500002040",
        ];
        contents.into_iter().flat_map(|digits| framed(&bytes(digits))).collect()
    }

    fn framed(content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u64).to_le_bytes();
        [&length[..], &checksum(&length), content, &checksum(content)].concat()
    }

    /// The checksum, bit by bit.
    fn checksum(bytes: &[u8]) -> [u8; 4] {
        let sum = bytes.iter().fold(u32::MAX, |sum, byte| {
            let shift = |sum: u32| {
                if sum & 1 == 1 {
                    (sum >> 1) ^ 0x82f6_3b78
                } else {
                    sum >> 1
                }
            };
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| shift(sum))
        });
        let sum = !sum;
        sum.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    }

    fn read(reader: &mut EventReader, bytes: &[u8]) -> Result<Vec<ScalarEvent>, BrokenRecord> {
        let mut events = Vec::new();
        reader.take(bytes, |event| events.push(event)).map(|()| events)
    }

    fn loss() -> ScalarEvent {
        ScalarEvent {
            wall_time_s: 1.5,
            step: 7,
            tag: "train/loss".to_owned(),
            value: 2.5,
        }
    }

    #[test]
    fn numbers_come_when_their_record_is_whole() {
        let file = file();
        assert_eq!(read(&mut EventReader::default(), &file), Ok(vec![loss()]));
        let mut reader = EventReader::default();
        let (last, first) = file.split_last().unwrap();
        for byte in first {
            assert_eq!(read(&mut reader, &[*byte]), Ok(Vec::new()));
        }
        assert_eq!(read(&mut reader, &[*last]), Ok(vec![loss()]));
    }

    #[test]
    fn tensors_of_one_number_count_too() {
        // Summary { value { tag: "a", tensor { dtype: 1, float_val: 2.5 } } }, packed, unpacked and as content.
        for tensor in ["08012a0400002040", "08012d00002040", "0801220400002040"] {
            let length = tensor.len() / 2;
            let value = format!("0a016142{length:02x}{tensor}");
            let summary = format!("0a{:02x}{value}", value.len() / 2);
            let event = format!("2a{:02x}{summary}", summary.len() / 2);
            let events = read(&mut EventReader::default(), &framed(&bytes(&event))).unwrap();
            assert_eq!((events[0].tag.as_str(), events[0].value), ("a", 2.5), "{tensor}");
        }
    }

    #[test]
    fn a_long_record_is_passed_over_without_being_kept() {
        let long = framed(&vec![7; 3 << 20]);
        let all = [long.as_slice(), &file()].concat();
        let mut reader = EventReader::default();
        let mut events = Vec::new();
        for piece in all.chunks(50_000) {
            events.extend(read(&mut reader, piece).unwrap());
            assert!(reader.begun.len() <= 50_000 + 12);
        }
        assert_eq!(events, [loss()]);
    }

    #[test]
    fn a_broken_record_is_an_error_with_its_place() {
        let whole = file();
        for place in [0, 9, 20, whole.len() - 1] {
            let mut broken = whole.clone();
            broken[place] ^= 0x40;
            let at = if place < 40 { 0 } else { 40 };
            assert_eq!(
                read(&mut EventReader::default(), &broken),
                Err(BrokenRecord { at }),
                "{place}"
            );
        }
        assert_eq!(
            read(&mut EventReader::default(), &framed(b"\x0b")),
            Err(BrokenRecord { at: 0 })
        );
    }
}
