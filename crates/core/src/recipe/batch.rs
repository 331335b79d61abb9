//! How tokens are batched, and what is kept of them for the backward pass.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU16;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Sharding;
use crate::quantity::{self, Count};

/// How tokens are batched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchSettings {
    /// Rows that go through the model at once.
    #[serde(deserialize_with = "quantity::count")]
    #[schemars(with = "Count")]
    pub micro_batch: usize,
    /// Micro-batches of each device whose gradients are added up before a step.
    #[serde(deserialize_with = "quantity::count")]
    #[schemars(with = "Count")]
    pub gradient_accumulation: usize,
    /// Devices that share a step: each takes its part of the micro-batches, and their gradients are added up.
    #[serde(skip_serializing_if = "is_one")]
    pub devices: usize,
    /// Part of the frozen weights that each of several devices holds.
    #[serde(skip_serializing_if = "Sharding::is_none")]
    pub sharding: Sharding,
    /// Longest row in tokens; longer ones are cut.
    #[serde(deserialize_with = "quantity::count")]
    #[schemars(with = "Count")]
    pub sequence_length: usize,
    /// Fills rows with several documents, each attending to itself only.
    pub packing: bool,
    /// Puts rows of similar length into the same step (shuffled training only). This engine has no padding to save by
    /// it; stacks that pad have, and order rows so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub group_by_length: bool,
    /// Steps whose rows are prepared ahead, on a thread of their own: read from the cache of tokens and laid end to end.
    /// 0 prepares each within its step.
    #[serde(deserialize_with = "quantity::count", skip_serializing_if = "is_usual_depth")]
    #[schemars(with = "Count")]
    pub prefetch_depth: usize,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self {
            micro_batch: 4,
            gradient_accumulation: 1,
            devices: 1,
            sharding: Sharding::None,
            sequence_length: 1024,
            packing: false,
            group_by_length: false,
            prefetch_depth: Self::USUAL_PREFETCH_DEPTH,
        }
    }
}

impl BatchSettings {
    /// The depth of recipes that name none: as PyTorch's loaders have it.
    pub const USUAL_PREFETCH_DEPTH: usize = 2;

    /// Micro-batches of one step, on all devices together.
    pub fn micro_batches(&self) -> usize {
        self.gradient_accumulation.saturating_mul(self.devices)
    }

    /// Devices that share out the frozen weights; 1 where each has all.
    pub fn ranks_of_weights(&self) -> usize {
        match self.sharding {
            Sharding::None => 1,
            Sharding::Full => self.devices,
        }
    }

    /// Rows in one step, on all devices together.
    pub fn global_batch(&self) -> usize {
        self.micro_batch.saturating_mul(self.micro_batches())
    }
}

/// Whether there is one device, which recipes need not say.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_one(devices: &usize) -> bool {
    *devices == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_usual_depth(depth: &usize) -> bool {
    *depth == BatchSettings::USUAL_PREFETCH_DEPTH
}

/// Activations that are kept for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Checkpointing {
    /// Keeps everything; the fastest and largest.
    #[default]
    None,
    /// Keeps the inputs of all layers and recomputes every n-th layer in the backward pass, n at least 2.
    Every(NonZeroU16),
    /// Keeps layer inputs only and recomputes each layer in the backward pass.
    Full,
    /// Keeps layer inputs only, moved to host memory, and recomputes each layer in the backward pass.
    Offload,
}

/// Row of the table of forms of checkpointing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CheckpointingRow {
    /// The name; `every_N` stands for those of all numbers.
    pub name: &'static str,
    pub about: &'static str,
}

impl Checkpointing {
    const ROWS: &'static [CheckpointingRow] = &[
        CheckpointingRow {
            name: "none",
            about: "Keeps all activations.",
        },
        CheckpointingRow {
            name: "every_N",
            about: "Recomputes every n-th layer, n at least 2.",
        },
        CheckpointingRow {
            name: "full",
            about: "Keeps layer inputs only.",
        },
        CheckpointingRow {
            name: "offload",
            about: "Keeps layer inputs only, in host memory.",
        },
    ];

    /// Row of the form in the table.
    pub fn row(self) -> &'static CheckpointingRow {
        let index = match self {
            Self::None => 0,
            Self::Every(_) => 1,
            Self::Full => 2,
            Self::Offload => 3,
        };
        &Self::ROWS[index]
    }

    /// All forms, one number of layers for all.
    pub const FORMS: [Self; 4] = [Self::None, Self::EVERY_SECOND, Self::Full, Self::Offload];

    /// Recomputes every second layer.
    pub const EVERY_SECOND: Self = Self::Every(NonZeroU16::new(2).expect("2 is not 0"));

    /// Regular expression of the names, for schemas.
    pub const PATTERN: &str = "^(none|every_([2-9]|[1-9][0-9]+)|full|offload)$";

    /// The form with this name: `none`, `every_N` (N at least 2), `full` or `offload`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "full" => Some(Self::Full),
            "offload" => Some(Self::Offload),
            _ => {
                let digits = name.strip_prefix("every_")?;
                let canonical = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
                let nth: u16 = canonical.then(|| digits.parse().ok())??;
                (nth >= 2).then_some(Self::Every(NonZeroU16::new(nth)?))
            }
        }
    }
}

impl fmt::Display for Checkpointing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("none"),
            Self::Every(nth) => write!(formatter, "every_{nth}"),
            Self::Full => formatter.write_str("full"),
            Self::Offload => formatter.write_str("offload"),
        }
    }
}

impl Serialize for Checkpointing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checkpointing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_name(&name).ok_or_else(|| {
            D::Error::custom(format!(
                "unknown gradient_checkpointing `{name}`; write none, every_N (every_2, every_3, ...), full or offload"
            ))
        })
    }
}

impl JsonSchema for Checkpointing {
    fn schema_name() -> Cow<'static, str> {
        "Checkpointing".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Which activations are kept for the backward pass: all (none recomputed), all but every n-th layer's, layer inputs only (full), or layer inputs in host memory (offload).",
            "type": "string",
            "pattern": Self::PATTERN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_checkpointing_have_one_name_each() {
        for name in ["none", "every_2", "every_16", "full", "offload"] {
            assert_eq!(Checkpointing::from_name(name).unwrap().to_string(), name);
        }
        for name in [
            "",
            "every_",
            "every_0",
            "every_1",
            "every_02",
            "every_+2",
            "every_99999",
            "Full",
            "every_second",
        ] {
            assert_eq!(Checkpointing::from_name(name), None, "{name}");
        }
    }
}
