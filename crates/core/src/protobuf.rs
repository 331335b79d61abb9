//! Messages in protobuf's wire format (<https://protobuf.dev/programming-guides/encoding>), written and read field by
//! field.
//!
//! The few messages that files of other tools consist of need no generated code: whoever writes or reads one has a table
//! of its fields beside it.

/// A message, to which fields are added in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
}

/// How the value behind a field's key is written.
#[derive(Clone, Copy, Debug)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
    Fixed32 = 5,
}

impl Message {
    /// Makes a message without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an integer, an enum's value or a truth value.
    #[must_use]
    pub fn number(mut self, field: u64, value: u64) -> Self {
        self.key(field, Wire::Varint);
        self.varint(value);
        self
    }

    /// Adds a number unless it is zero, which is what an absent one means.
    #[must_use]
    pub fn number_unless_zero(self, field: u64, value: u64) -> Self {
        if value == 0 { self } else { self.number(field, value) }
    }

    /// Adds a `double`.
    #[must_use]
    pub fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, Wire::Fixed64);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a `float`.
    #[must_use]
    pub fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, Wire::Fixed32);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, field: u64, content: &str) -> Self {
        self.content(field, content.as_bytes())
    }

    /// Adds a message.
    #[must_use]
    pub fn message(self, field: u64, content: &Self) -> Self {
        self.content(field, &content.bytes)
    }

    /// Adds the messages of a repeated field.
    #[must_use]
    pub fn messages(self, field: u64, contents: impl IntoIterator<Item = Self>) -> Self {
        let add = |message: Self, content: Self| message.message(field, &content);
        contents.into_iter().fold(self, add)
    }

    /// Gives the message's bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn content(mut self, field: u64, content: &[u8]) -> Self {
        self.key(field, Wire::Length);
        self.varint(content.len() as u64);
        self.bytes.extend(content);
        self
    }

    fn key(&mut self, field: u64, wire: Wire) {
        self.varint(field << 3 | wire as u64);
    }

    /// Seven bits a byte, the lowest first; all bytes but the last have their top bit set.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

/// Value of a field as it stands in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// An integer, an enum's value or a truth value.
    Number(u64),
    /// The bits of a `double`.
    Fixed64(u64),
    /// A text, a message, or numbers without keys of their own.
    Content(&'a [u8]),
    /// The bits of a `float`.
    Fixed32(u32),
}

/// Reads the fields of a message in their order, with their numbers; `None` where the bytes are no message.
pub fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, FieldValue<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        let value = match key & 7 {
            0 => FieldValue::Number(take_varint(&mut bytes)?),
            1 => FieldValue::Fixed64(u64::from_le_bytes(take_array(&mut bytes)?)),
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                let (content, behind) = bytes.split_at_checked(length)?;
                bytes = behind;
                FieldValue::Content(content)
            }
            5 => FieldValue::Fixed32(u32::from_le_bytes(take_array(&mut bytes)?)),
            _ => return None,
        };
        fields.push((key >> 3, value));
    }
    Some(fields)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let [byte] = take_array(bytes)?;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, behind) = bytes.split_first_chunk::<N>()?;
    *bytes = behind;
    Some(*array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_stand() {
        let bytes = b"\x08\x96\x01\x12\x07testing\x15\x00\x00\x20\x40\x09\x00\x00\x00\x00\x00\x00\xf8\x3f";
        let expected = [
            (1, FieldValue::Number(150)),
            (2, FieldValue::Content(b"testing")),
            (2, FieldValue::Fixed32(2.5f32.to_bits())),
            (1, FieldValue::Fixed64(1.5f64.to_bits())),
        ];
        assert_eq!(fields(bytes).unwrap(), expected);
        assert_eq!(
            fields(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap(),
            [(1, FieldValue::Number(u64::MAX))]
        );
        for torn in [&b"\x08"[..], b"\x12\x07test", b"\x15\x00", b"\x0b", &[0xff; 11]] {
            assert_eq!(fields(torn), None, "{torn:?}");
        }
        assert_eq!(fields(b""), Some(Vec::new()));
    }

    #[test]
    fn messages_have_the_bytes_of_the_specification() {
        assert_eq!(Message::new().number(1, 150).into_bytes(), b"\x08\x96\x01");
        assert_eq!(Message::new().text(2, "testing").into_bytes(), b"\x12\x07testing");
        let inner = Message::new().number(1, 150);
        assert_eq!(Message::new().message(3, &inner).into_bytes(), b"\x1a\x03\x08\x96\x01");
        let repeated = Message::new().messages(16, [inner.clone(), Message::new()]);
        assert_eq!(repeated.into_bytes(), b"\x82\x01\x03\x08\x96\x01\x82\x01\x00");
    }

    #[test]
    fn a_zero_is_written_where_it_is_asked_for() {
        assert_eq!(Message::new().number(4, 0).into_bytes(), b"\x20\x00");
        assert_eq!(Message::new().number_unless_zero(4, 0), Message::new());
    }

    #[test]
    fn numbers_of_a_fixed_length_are_little_endian() {
        assert_eq!(Message::new().float(2, 2.5).into_bytes(), b"\x15\x00\x00\x20\x40");
        assert_eq!(
            Message::new().double(1, 1.5).into_bytes(),
            b"\x09\x00\x00\x00\x00\x00\x00\xf8\x3f"
        );
    }
}
