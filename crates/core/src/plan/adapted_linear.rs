//! A linear layer with its adapter.

use super::shape::LinearShape;

/// One linear layer that gets an adapter, or the same projection of all experts of a layer: E adapters of one rank.
///
/// With E experts, lora_a is (E r, in), the rows of one expert below those of the next, and lora_b (out, r E), with the columns of
/// all experts for one rank beside each other: PEFT's layout of an adapter on a stacked parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptedLinear {
    pub linear: LinearShape,
    /// The module that PEFT's tensors are named after.
    pub module: String,
    /// Whether PEFT adapts the parameter and not the module.
    pub by_parameter: bool,
    /// Projections whose adapters were joined to this one.
    pub joined: usize,
    pub rank: usize,
    pub alpha: f64,
    /// Factor on B A x.
    pub scaling: f64,
    /// Ranks of the adapters that lie side by side in this one, 0 where one is not on this layer; empty for an adapter alone.
    pub parts: Vec<usize>,
}
