//! What a trial measured: finite numbers by name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measured values by metric name, always finite.
///
/// The objectives are `throughput` (tokens/s), `peak_memory` (bytes) and `loss` (nats per target token). Beside them
/// the engine reports the names listed in `docs/database.md`; a command backend may report any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Records a value; NaN and infinities are left out, as SQLite and JSON cannot hold them. Returns whether it was
    /// kept.
    pub fn insert(&mut self, name: impl Into<String>, value: f64) -> bool {
        let finite = value.is_finite();
        if finite {
            self.0.insert(name.into(), value);
        }
        finite
    }

    /// The value of one metric.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// All values in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<const N: usize> From<[(&str, f64); N]> for Metrics {
    fn from(values: [(&str, f64); N]) -> Self {
        let mut metrics = Self::default();
        for (name, value) in values {
            metrics.insert(name, value);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_not_kept() {
        let mut metrics = Metrics::default();
        assert!(!metrics.insert("loss", f64::NAN) && !metrics.insert("loss", f64::INFINITY));
        assert!(metrics.insert("loss", 2.5));
        assert_eq!(metrics.value("loss"), Some(2.5));
    }
}
