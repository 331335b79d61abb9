//! What an update rule is.

use candle_core::{Result, Tensor};

use crate::train::Parameters;

/// When and how far one update goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Number of this update, from 1.
    pub number: u64,
    pub learning_rate: f64,
}

/// Changes parameters by their gradients, in two forms that agree up to rounding. Both update `parameters.values` in
/// place from `parameters.gradients`, which they leave as they are.
pub(super) trait UpdateRule: Send {
    /// One pass over the flat buffers, on the CPU.
    fn update_fused(&self, parameters: &Parameters, step: Step) -> Result<()>;

    /// Plain tensor ops, on any device.
    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()>;

    /// The rule's state: one-dimensional tensors by name, not copies. Whoever writes into them restores the state.
    fn state(&self) -> Vec<(&'static str, Tensor)>;
}
