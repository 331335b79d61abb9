//! Measurements that trials under way make, so that no other trial begins to make the same beside them.
//!
//! A trial that needs what another is about to know is deferred, and ones that do not are handed out meanwhile. It starts
//! when that is known, and takes it over; where the other failed or was lost, it measures itself. Only trials that run are
//! waited for and they always end, so nothing waits for ever.

use super::measured_metrics::MetricKey;
use super::measurement::Measurement;
use peft_tune_core::recipe::RecipeKey;

/// Something that one trial measures for all that share its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Cost(RecipeKey),
    Loss(RecipeKey),
    /// A metric of a command that is known at the end only.
    Metric(String, MetricKey),
}

impl Claim {
    /// Whether it is about this part of a trial.
    pub(super) fn is_on(&self, part: &Measurement) -> bool {
        match (self, part) {
            (Self::Cost(_), Measurement::Cost) | (Self::Loss(_), Measurement::Loss) => true,
            (Self::Metric(name, _), Measurement::Metric(other)) => name == other,
            _ => false,
        }
    }
}
