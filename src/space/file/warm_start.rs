//! The key `warm_start` as it is written.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use crate::space::WarmStart;

/// Earlier studies to start from: `true` for those alike, or their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmStartEntry(pub WarmStart);

impl<'de> Deserialize<'de> for WarmStartEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;

        impl<'de> Visitor<'de> for Entry {
            type Value = WarmStartEntry;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("true, false, or a list of names of studies")
            }

            fn visit_bool<E>(self, alike: bool) -> Result<Self::Value, E> {
                Ok(WarmStartEntry(if alike { WarmStart::Alike } else { WarmStart::Off }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element()? {
                    names.push(name);
                }
                Ok(WarmStartEntry(WarmStart::Named(names)))
            }
        }

        deserializer.deserialize_any(Entry)
    }
}

impl JsonSchema for WarmStartEntry {
    fn schema_name() -> Cow<'static, str> {
        "WarmStart".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}], "default": false})
    }
}
