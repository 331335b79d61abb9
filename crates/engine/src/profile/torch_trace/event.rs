//! One event of a trace, as far as it is read (the Trace Event Format, and what PyTorch's profiler adds as `args`).

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::value::Value;

/// An event with its times in microseconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    /// `X`: something that lasts; `i`: a moment.
    pub ph: Value,
    pub cat: Value,
    pub name: Value,
    pub pid: Value,
    pub tid: Value,
    pub ts: Value,
    pub dur: Value,
    pub args: Details,
}

/// What PyTorch's profiler adds to an event.
#[derive(Debug, Default)]
pub(super) struct Details {
    /// Number that an op shares with the calls and kernels that it launched.
    pub external: Value,
    /// Number that a call of the driver shares with its kernel.
    pub correlation: Value,
    pub dims: Value,
    pub types: Value,
    /// Bytes in use behind an allocation, and on which kind of device.
    pub allocated: Value,
    pub device_type: Value,
    pub device_id: Value,
    /// The GPU that a kernel ran on.
    pub device: Value,
}

/// A device of the machine, from the head of a trace.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeviceRow {
    pub id: Value,
    pub name: Value,
}

/// The process's place among several, from the head of a trace.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RankRow {
    pub rank: Value,
    pub world_size: Value,
}

#[derive(Deserialize)]
#[serde(field_identifier)]
enum DetailKey {
    #[serde(rename = "External id")]
    External,
    #[serde(rename = "correlation")]
    Correlation,
    #[serde(rename = "Input Dims")]
    Dims,
    #[serde(rename = "Input type")]
    Types,
    #[serde(rename = "Total Allocated")]
    Allocated,
    #[serde(rename = "Device Type")]
    DeviceType,
    #[serde(rename = "Device Id")]
    DeviceId,
    #[serde(rename = "device")]
    Device,
    #[serde(other)]
    Unread,
}

impl<'de> Deserialize<'de> for Details {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyDetails)
    }
}

/// Reads an object by its keys, one that has a key twice too. Anything else has no details.
struct AnyDetails;

impl<'de> Visitor<'de> for AnyDetails {
    type Value = Details;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an event's `args`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Details, A::Error> {
        let mut details = Details::default();
        while let Some(key) = entries.next_key()? {
            let field = match key {
                DetailKey::External => &mut details.external,
                DetailKey::Correlation => &mut details.correlation,
                DetailKey::Dims => &mut details.dims,
                DetailKey::Types => &mut details.types,
                DetailKey::Allocated => &mut details.allocated,
                DetailKey::DeviceType => &mut details.device_type,
                DetailKey::DeviceId => &mut details.device_id,
                DetailKey::Device => &mut details.device,
                DetailKey::Unread => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = entries.next_value()?;
        }
        Ok(details)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Details, A::Error> {
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Details::default())
    }

    fn visit_unit<E>(self) -> Result<Details, E> {
        Ok(Details::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Details, E> {
        Ok(Details::default())
    }
}
