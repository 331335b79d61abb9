//! Throughput of a training whose precision changes on the way.

use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::Metrics;

/// Metrics: throughput of the steps that a schedule of the precision has in F32, and of all others.
pub(super) const FP32_THROUGHPUT: &str = "throughput_fp32_steps";
pub(super) const OWN_THROUGHPUT: &str = "throughput_own_steps";

/// Mixes the throughput of a training that spends `share` of its steps in F32.
pub(super) fn mix_throughput(share: f64, metrics: &mut Metrics) {
    if let (Some(fp32), Some(own)) = (metrics.value(FP32_THROUGHPUT), metrics.value(OWN_THROUGHPUT))
        && fp32 > 0.0
        && own > 0.0
    {
        metrics.insert(THROUGHPUT, 1.0 / (share / fp32 + (1.0 - share) / own));
    }
}
