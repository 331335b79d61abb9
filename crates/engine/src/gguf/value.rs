//! Values of GGUF's metadata.

/// A value, and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Texts(Vec<String>),
}

/// Keys and their values.
pub(crate) type Metadata = Vec<(String, Value)>;

/// Number of an array's type.
const ARRAY: u32 = 9;

impl Value {
    /// Number of its type, of its elements where it is an array.
    fn code(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::I32s(_) => 5,
            Self::F32(_) | Self::F32s(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) | Self::Texts(_) => 8,
        }
    }

    /// Appends type and value.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let length = match self {
            Self::I32s(values) => Some(values.len()),
            Self::F32s(values) => Some(values.len()),
            Self::Texts(values) => Some(values.len()),
            _ => None,
        };
        if let Some(length) = length {
            bytes.extend(ARRAY.to_le_bytes());
            bytes.extend(self.code().to_le_bytes());
            bytes.extend((length as u64).to_le_bytes());
        } else {
            bytes.extend(self.code().to_le_bytes());
        }
        match self {
            Self::U32(value) => bytes.extend(value.to_le_bytes()),
            Self::F32(value) => bytes.extend(value.to_le_bytes()),
            Self::Bool(value) => bytes.push(u8::from(*value)),
            Self::Text(value) => write_text(value, bytes),
            Self::I32s(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
            Self::F32s(values) => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
            Self::Texts(values) => values.iter().for_each(|value| write_text(value, bytes)),
        }
    }
}

/// Appends a text with its length.
pub(super) fn write_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
