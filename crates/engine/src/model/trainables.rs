//! What trains on a base model.

use std::collections::HashMap;

use crate::Parameters;
use crate::base::Weight;
use peft_tune_core::plan::{AdaptedLinear, LinearSlots, ModelPlan};

/// Parameters that train, by name in the base checkpoint.
#[derive(Debug)]
pub(crate) struct Trainables<'a> {
    pub plan: &'a ModelPlan,
    pub parameters: &'a Parameters,
    /// Each adapted module (`model.layers.0.self_attn.q_proj`) with its slots.
    pub adapters: HashMap<&'a str, (&'a AdaptedLinear, &'a LinearSlots)>,
    /// Slot of each base parameter that trains (`model.norm.weight`).
    pub whole: HashMap<&'a str, usize>,
    /// Weights that stand in for the base model's, by the name of their tensor.
    pub replaced: &'a HashMap<String, Weight>,
}
