//! Evidence that the rules look at.

use super::{Change, Gain, Metric, PredictedBy};
use crate::profile::{OpTime, Profile};
use peft_tune_core::recipe::{Precision, Recipe};

/// Tells what a setting would cost.
pub trait Oracle {
    /// The cost of `recipe` on this machine; `None` where it cannot tell.
    fn cost(&self, recipe: &Recipe) -> Option<Cost>;
}

/// The oracle that knows nothing: gains then come from parts of the measured step.
impl Oracle for () {
    fn cost(&self, _recipe: &Recipe) -> Option<Cost> {
        None
    }
}

/// Cost of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub tokens_per_s: f64,
    pub peak_bytes: f64,
}

/// A profile with what else is known.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    pub profile: &'a Profile,
    pub recipe: &'a Recipe,
    pub oracle: &'a dyn Oracle,
    /// A number type that this device multiplies faster than the profile's.
    pub faster_type: Option<FasterType>,
    /// Trials that differ in their rank alone.
    pub losses_by_rank: &'a [RankLoss],
}

/// A number type that a device multiplies faster than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FasterType {
    /// Precision that computes in it.
    pub precision: Precision,
    /// Products in the time of one in the other type.
    pub times: f64,
}

/// Held-out loss that a training with an adapter of some rank came to, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankLoss {
    pub rank: usize,
    pub loss: f64,
}

impl Evidence<'_> {
    /// Gain of throughput that the oracle predicts for a change.
    pub(super) fn predicted_throughput(&self, change: &Change) -> Option<Gain> {
        let (before, after) = self.costs(change)?;
        let value = after.tokens_per_s / before.tokens_per_s - 1.0;
        value.is_finite().then_some(Gain {
            metric: Metric::Throughput,
            value,
            by: PredictedBy::Model,
        })
    }

    /// Gain of peak memory that the oracle predicts for a change.
    pub(super) fn predicted_memory(&self, change: &Change) -> Option<Gain> {
        let (before, after) = self.costs(change)?;
        Some(Gain {
            metric: Metric::PeakMemory,
            value: before.peak_bytes - after.peak_bytes,
            by: PredictedBy::Model,
        })
    }

    /// Peak memory after a change: what was measured, changed by what the oracle says.
    pub(super) fn peak_after(&self, change: &Change) -> Option<f64> {
        let (before, after) = self.costs(change)?;
        Some(self.profile.memory.peak_bytes as f64 + after.peak_bytes - before.peak_bytes)
    }

    fn costs(&self, change: &Change) -> Option<(Cost, Cost)> {
        let changed = change.apply(self.recipe)?;
        Some((self.oracle.cost(self.recipe)?, self.oracle.cost(&changed)?))
    }

    /// Part of the step that passes between ops in the forward and the backward pass.
    pub(super) fn between_ops(&self) -> f64 {
        if self.profile.steps.spanned.is_some() {
            // What recording costs lies between ops in steps with spans. The GPU's own timeline is of steps without.
            let timeline = self.profile.gpu.as_ref().filter(|gpu| gpu.step_s() > 0.0);
            return timeline.map_or(0.0, |gpu| (gpu.launch_gap_s / gpu.step_s()).clamp(0.0, 1.0));
        }
        let passes = ["forward", "backward"].map(|name| self.profile.phase(name));
        let step = self.profile.steps.span_step_s().max(f64::MIN_POSITIVE);
        let between = passes.into_iter().flatten();
        let seconds: f64 = between.map(|phase| phase.share * step - phase.op_seconds).sum();
        (seconds / step).clamp(0.0, 1.0)
    }

    /// Seconds of a step in the kernels of an op, by the GPU's own clock in steps that nobody held up.
    pub(super) fn kernel_seconds(&self, op: &str) -> Option<f64> {
        let gpu = self.profile.gpu.as_ref()?;
        let seconds = gpu.seconds_of(op);
        (seconds > 0.0).then_some(seconds)
    }

    /// Matrix products, loss head and attention included.
    pub(super) fn products(&self) -> impl Iterator<Item = &OpTime> {
        self.profile.ops.iter().filter(|op| op.flops > 0.0)
    }
}

/// A share as people read it.
pub(super) fn percent(share: f64) -> String {
    let value = 100.0 * share;
    if value.abs() < 9.95 {
        format!("{value:.1}%")
    } else {
        format!("{value:.0}%")
    }
}

/// Bytes as people read them.
pub(super) fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / 1_048_576.0)
}
