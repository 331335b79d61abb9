//! The keys by which the files of other tools say what a row of a table means.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::settings::Tool;

/// A value in a tool's file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyValue {
    Flag(bool),
    Number(i64),
    Float(f64),
    Text(&'static str),
    Map(Keys),
}

/// Keys of a tool's file with their values, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keys(pub &'static [(&'static str, KeyValue)]);

impl Keys {
    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<KeyValue> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// The keys with their values as JSON.
    pub fn to_json(&self) -> impl Iterator<Item = (&'static str, serde_json::Value)> + use<> {
        self.0.iter().map(|(key, value)| (*key, (*value).into()))
    }

    /// The text that a key is set to.
    pub fn text(&self, key: &str) -> Option<&'static str> {
        match self.value(key)? {
            KeyValue::Text(text) => Some(text),
            KeyValue::Flag(_) | KeyValue::Number(_) | KeyValue::Float(_) | KeyValue::Map(_) => None,
        }
    }

    /// Whether a key is set to true.
    pub fn flag(&self, key: &str) -> bool {
        self.value(key) == Some(KeyValue::Flag(true))
    }
}

/// What each tool's file says; `None` where the tool has no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ToolKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peft: Option<Keys>,
    pub trl: Option<Keys>,
    pub axolotl: Option<Keys>,
    pub llamafactory: Option<Keys>,
    pub torchtune: Option<Keys>,
    pub unsloth: Option<Keys>,
}

impl ToolKeys {
    /// For what no other tool has.
    pub const NONE: Self = Self {
        peft: None,
        trl: None,
        axolotl: None,
        llamafactory: None,
        torchtune: None,
        unsloth: None,
    };

    /// What one tool's file says.
    pub fn at(&self, tool: Tool) -> Option<Keys> {
        match tool {
            Tool::Peft => self.peft,
            Tool::Trl => self.trl,
            Tool::Axolotl => self.axolotl,
            Tool::LlamaFactory => self.llamafactory,
            Tool::Torchtune => self.torchtune,
            Tool::Unsloth => self.unsloth,
        }
    }
}

/// Writes `Some(Keys)` as a list of `key: value`.
macro_rules! keys {
    ($($key:literal : $value:expr),* $(,)?) => {
        Some($crate::recipe::Keys(&[$(($key, $value)),*]))
    };
}

pub(super) use keys;

impl Serialize for KeyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Flag(value) => serializer.serialize_bool(*value),
            Self::Number(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
            Self::Map(keys) => keys.serialize(serializer),
        }
    }
}

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl From<KeyValue> for serde_json::Value {
    fn from(value: KeyValue) -> Self {
        match value {
            KeyValue::Flag(value) => value.into(),
            KeyValue::Number(value) => value.into(),
            KeyValue::Float(value) => value.into(),
            KeyValue::Text(value) => value.into(),
            KeyValue::Map(Keys(entries)) => {
                let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).into()));
                Self::Object(entries.collect())
            }
        }
    }
}
