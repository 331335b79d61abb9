//! Rules by which optimizers update parameters.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::cuda::GroupFactors;
use super::group::Group;
use crate::Parameters;
use crate::tensor::Ledger;

/// Device on which states are made.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateHome<'a> {
    On(&'a Device),
    /// No device: one zero in the place of all states.
    Paper,
}

impl StateHome<'_> {
    /// Zeros, one at least: a tensor without elements cannot be made on every device.
    pub(super) fn zeros(self, elements: usize, dtype: DType) -> Result<Tensor> {
        match self {
            Self::On(device) => Tensor::zeros(elements.max(1), dtype, device),
            Self::Paper => Tensor::zeros((), dtype, &Device::Cpu)?.broadcast_as(elements.max(1)),
        }
    }
}

/// Time and rate of one update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Number of this update, from 1.
    pub number: u64,
    pub learning_rate: f64,
    /// How much it counts in the average of all updates, for rules that keep one.
    pub share: f64,
}

impl Step {
    /// Learning rate of a group.
    pub(super) fn rate(&self, group: &Group) -> f64 {
        self.learning_rate * group.rate_ratio
    }
}

/// Changes parameters by their gradients, in two forms that agree up to rounding. Both update `parameters.values` in
/// place from `parameters.gradients`, which they leave as they are.
pub(super) trait UpdateRule: Send + Sync {
    /// One pass over the parameters that lie in `elements` of the flat buffers, on the CPU. The range begins and ends at the bounds of
    /// parameters; no element beyond it is looked at.
    fn update_fused(&self, parameters: &Parameters, step: Step, elements: Range<usize>) -> Result<()>;

    /// Plain tensor ops, on any device.
    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()>;

    /// The update as launches that are the same in every step on an NVIDIA GPU, where the rule has that.
    fn repeated(&self) -> Option<&dyn RepeatedUpdate> {
        None
    }

    /// The update on an NVIDIA GPU of a rule whose steps are not [`repeated`](Self::repeated).
    fn update_gpu(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.update_plain(parameters, step)
    }

    /// State to add to the values before gradients are taken, times its factor, and to take off again where no update
    /// follows; it lies as the values do. `None` for most rules.
    fn look_ahead(&self) -> Option<(&Tensor, f32)> {
        None
    }

    /// Takes what an update takes besides values, gradients and states, on paper: nothing for most rules.
    fn update_on_paper(&self, _: &Ledger) -> Result<()> {
        Ok(())
    }

    /// The rule's state: one-dimensional tensors by name, not copies. Whoever writes into them restores the state.
    fn state(&self) -> Vec<(String, Tensor)>;
}

/// An update on an NVIDIA GPU: few launches for all groups. What differs from step to step is in the device's memory before the first
/// one, so that a CUDA graph can hold them.
pub(super) trait RepeatedUpdate {
    /// Puts what `step` asks for where the launches read it, at the end of the device's queue.
    fn prepare(&self, step: Step, device: &Device) -> Result<()>;

    /// Launches the update that was last prepared. Where `norm`, (1,) F64 or more, begins with a number that is not finite, it
    /// changes nothing.
    fn launch(&self, parameters: &Parameters, norm: Option<&Tensor>) -> Result<()>;
}

/// A rule that looks at one element and its N states at a time: how these are stored is not its business.
pub(super) trait ElementRule<const N: usize>: Send + Sync {
    /// Factors that an update takes besides the element, the same for a whole group.
    type Factors: Copy + Send + Sync;

    /// Names of the states.
    const STATES: [&'static str; N];
    /// Whether a state can be negative.
    const SIGNED: [bool; N];

    /// Name of the rule's kernel.
    const KERNEL: &'static str;

    fn factors(&self, group: &Group, step: Step) -> Self::Factors;

    /// The factors as the kernel takes them.
    fn for_kernel(factors: &Self::Factors) -> GroupFactors;

    /// The states that an update starts from, where `states` were codes. Coding one apart from the other makes pairs that no gradients
    /// lead to: a rule that divides by one of them says here what it may be. `most_of_zero` are the largest values that the codes of
    /// zero may stand for.
    #[inline(always)]
    fn restored(_: &Self::Factors, states: [f32; N], _most_of_zero: [f32; N]) -> [f32; N] {
        states
    }

    /// [`restored`](Self::restored) in plain tensor ops; `most_of_zero` are such that they are broadcast to the states.
    fn restored_plain(_: &Self::Factors, states: [Tensor; N], _most_of_zero: &[Tensor; N]) -> Result<[Tensor; N]> {
        Ok(states)
    }

    /// How much of the first state is added to a value before its gradient is taken. [`apply`](Self::apply) gets the
    /// sum.
    fn look_ahead(&self) -> Option<f32> {
        None
    }

    /// Updates `value` and returns the new states.
    fn apply(factors: &Self::Factors, value: &mut f32, gradient: f32, states: [f32; N]) -> [f32; N];

    /// [`apply`](Self::apply) in plain tensor ops: returns the new value and states.
    fn apply_plain(
        factors: &Self::Factors,
        value: &Tensor,
        gradient: &Tensor,
        states: &[Tensor; N],
    ) -> Result<(Tensor, [Tensor; N])>;
}
