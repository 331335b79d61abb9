//! A setting, and what it is predicted to cost.

use serde::Serialize;

use super::Workload;
use super::memory_category::Bytes;
use super::seconds::Seconds;
use crate::recipe::Recipe;

/// One setting: a recipe, and what it trains on.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub recipe: &'a Recipe,
    pub workload: &'a Workload,
}

/// Costs of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Bytes by category at the highest moment of a step.
    pub bytes: Bytes,
    /// Seconds of a step; zero where the machine's speed is not known.
    pub seconds: Seconds,
    /// Seconds of these in which devices wait for their link; 0 on one device, and where no link is known.
    pub link_s: f64,
    /// Tokens of a step.
    pub tokens: f64,
    /// Bytes of the host's memory that the updates of a training on a GPU take, of all devices together; 0 where the device has all, or is the
    /// host.
    pub host_bytes: u64,
    /// Seconds of a token that the setting's model answers with, where the study serves it and the machine's speed is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serve_s: Option<f64>,
}

/// Costs of a setting when tokens crowd at some experts: seconds of a step over those with as many tokens at each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Imbalance {
    /// The n-th expert has a share of 1/n.
    pub zipf: f64,
    /// All tokens choose the same experts.
    pub crowded: f64,
}

impl Prediction {
    /// Highest bytes in use.
    pub fn peak_bytes(&self) -> u64 {
        self.bytes.total()
    }

    /// Trained tokens a second; zero where the machine's speed is not known.
    pub fn tokens_per_s(&self) -> f64 {
        match self.seconds.total() {
            total if total > 0.0 => self.tokens / total,
            _ => 0.0,
        }
    }
}
