//! Cause of a training loss that spikes, or is no number any more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cause of a spike, as far as there is evidence for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum SpikeCause {
    /// Numbers beyond the range of the precision.
    Overflow,
    /// Updates that are too large.
    Rate,
    /// Rows that are unlike the others.
    Data,
    /// No evidence for any of them.
    Unclear,
}

impl SpikeCause {
    /// Nats by which a loss has risen when it stands out.
    pub const NATS: f64 = 2.0;

    /// Name of the cause, as in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
