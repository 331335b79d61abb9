//! The seam for knowledge of the machine: what a setting is expected to measure before anything is measured.

use peft_tune_core::study::Params;

/// Predicts metrics from params. The sampler learns only what measurements add to the predictions.
pub trait Prior: Send + Sync {
    /// The expected value of a metric in its own unit, or `None` where nothing is known. A metric that is predicted for one
    /// setting is predicted for all, and predictions are positive: measured over predicted is what is learned.
    fn expected(&self, params: &Params, metric: &str) -> Option<f64>;

    /// Why a setting is certain to fail, such as not fitting the device by a wide margin; it is then never proposed.
    fn impossible(&self, params: &Params) -> Option<String>;

    /// Whether two settings are expected to learn the same but for noise, though what they differ in can change the loss: weights in
    /// 16 bits and in 32.
    fn learns_alike(&self, _one: &Params, _other: &Params) -> bool {
        false
    }

    /// Whether predictions tell the costs of a parameter's values apart. Where they do not, as of another stack's kernels, values are
    /// measured before they are passed over.
    fn models(&self, _parameter: &str) -> bool {
        true
    }
}
