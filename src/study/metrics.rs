//! What a trial measured: finite numbers by name.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measured values by metric name, always finite.
///
/// The objectives are `throughput` (tokens/s), `peak_memory` (bytes) and `loss` (nats per target token). Beside them
/// the engine reports the names listed in `docs/database.md`; a command backend may report any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Metrics(
    // In name order. A tree would take four times the memory, and thousands of trials are kept.
    #[serde(with = "by_name")]
    #[schemars(with = "std::collections::BTreeMap<String, f64>")]
    Vec<(Arc<str>, f64)>,
);

impl Metrics {
    /// Records a value; NaN and infinities are left out, as SQLite and JSON cannot hold them. Returns whether it was
    /// kept.
    pub fn insert(&mut self, name: impl AsRef<str>, value: f64) -> bool {
        let (name, finite) = (name.as_ref(), value.is_finite());
        if finite {
            match self.position(name) {
                Ok(at) => self.0[at].1 = value,
                Err(at) => self.0.insert(at, (name.into(), value)),
            }
        }
        finite
    }

    /// The value of one metric.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.position(name).ok().map(|at| self.0[at].1)
    }

    /// All values in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all but these metrics.
    pub fn retain(&mut self, names: &BTreeSet<Arc<str>>) {
        self.0.retain(|(name, _)| names.contains(name));
    }

    /// Takes the names' text from `names`, which learns those it lacks, and gives spare room back: many metrics then hold
    /// each name once.
    pub fn share_names(&mut self, names: &mut BTreeSet<Arc<str>>) {
        for (name, _) in &mut self.0 {
            match names.get(name) {
                Some(known) => *name = Arc::clone(known),
                None => {
                    names.insert(Arc::clone(name));
                }
            }
        }
        self.0.shrink_to_fit();
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_ref().cmp(name))
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

/// Metrics are written as an object.
mod by_name {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[(Arc<str>, f64)], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values.iter().map(|(name, value)| (name.as_ref(), value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(Arc<str>, f64)>, D::Error> {
        let values = BTreeMap::<String, f64>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|(name, value)| (name.into(), value)).collect())
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
        metrics.retain(&["loss".into(), "f1".into()].into());
        assert_eq!(metrics, [("loss", 2.0)].into());
    }

    #[test]
    fn names_are_held_once() {
        let mut names = BTreeSet::new();
        let mut trials = [
            Metrics::from([("loss", 1.0)]),
            Metrics::from([("f1", 3.0), ("loss", 2.0)]),
        ];
        trials.iter_mut().for_each(|one| one.share_names(&mut names));
        assert_eq!(names.len(), 2);
        assert!(Arc::ptr_eq(&trials[0].0[0].0, &trials[1].0[1].0));
        assert_eq!(trials[1], [("f1", 3.0), ("loss", 2.0)].into());
    }
}
