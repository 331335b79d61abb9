//! The gated delta rule, with the products of its states.

use candle_core::{Result, Tensor};

use super::{bytes, storage};
use crate::span::{Shape, Work, op};
use peft_tune_kernels::ops::delta_rule;
pub(in crate::model) use peft_tune_kernels::ops::delta_rule::{Gradients, Heads, Inputs};

/// Returns o; see [`delta_rule::forward`].
pub(in crate::model) fn forward(inputs: &Inputs<'_>, states: Option<&Tensor>) -> Result<Tensor> {
    // What a state is multiplied with: k, the write and q.
    let _span = op("delta_rule", || Work {
        flops: 6 * states_passed(inputs),
        bytes: 2 * bytes(inputs.mixed),
        ..described(inputs.mixed)
    });
    delta_rule::forward(inputs, states)
}

/// See [`delta_rule::backward`].
pub(in crate::model) fn backward(inputs: &Inputs<'_>, d_o: &Tensor) -> Result<Gradients> {
    let _span = op("delta_rule_backward", || Work {
        flops: 22 * states_passed(inputs),
        recomputed_flops: 8 * states_passed(inputs),
        bytes: 3 * bytes(inputs.mixed) + bytes(d_o),
        ..described(inputs.mixed)
    });
    delta_rule::backward(inputs, d_o)
}

/// Values of all states that the tokens pass.
fn states_passed(inputs: &Inputs<'_>) -> u64 {
    let tokens = inputs.mixed.dims2().map_or(0, |(tokens, _)| tokens);
    (tokens * inputs.heads.values * inputs.heads.state()) as u64
}

fn described(mixed: &Tensor) -> Work {
    Work {
        storage: storage(mixed.dtype()),
        shape: Shape::with_tokens(mixed.dims(), 0),
        ..Work::default()
    }
}
