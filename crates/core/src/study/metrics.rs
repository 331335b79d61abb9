//! Metrics that a trial measured: finite numbers by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByName, SharedText};

/// Measured values by metric name, always finite.
///
/// The objectives are `throughput` (tokens/s), `peak_memory` (bytes) and `loss` (nats per target token). Beside them
/// the engine reports the names listed in `docs/database.md`; a command backend may report any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Metrics(ByName<f64>);

impl Metrics {
    /// Records a value; NaN and infinities are left out, as SQLite and JSON cannot hold them. Returns whether it was
    /// kept.
    pub fn insert(&mut self, name: impl AsRef<str>, value: f64) -> bool {
        let finite = value.is_finite();
        if finite {
            self.0.insert(name.as_ref(), value);
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

    /// Forgets all but the metrics of which `keep` says so.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// Takes the names from `held`, which learns them where they are new.
    pub fn share(&mut self, held: &mut SharedText) {
        self.0.share(held);
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

    #[test]
    fn values_are_kept_by_name_and_written_as_an_object() {
        let mut metrics = Metrics::from([("throughput", 4.0), ("loss", 2.5), ("accuracy", 0.5), ("loss", 2.0)]);
        let text = serde_json::to_string(&metrics).unwrap();
        assert_eq!(text, r#"{"accuracy":0.5,"loss":2.0,"throughput":4.0}"#);
        assert_eq!(serde_json::from_str::<Metrics>(&text).unwrap(), metrics);
        metrics.retain(|name| ["loss", "f1"].contains(&name));
        assert_eq!(metrics, [("loss", 2.0)].into());
    }
}
