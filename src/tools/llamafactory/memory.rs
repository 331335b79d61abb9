//! What LLaMA-Factory holds, read from LLaMA-Factory 0.9.5.

use peft_tune_core::predict::stack::{HostUpdates, Raised, Recompute, StackBehaviour};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    pads_to: 8,
    autocast: true,
    raises: Raised::Nothing,
    recompute: Recompute::Layers,
    foreach: false,
    host_updates: HostUpdates::DeepSpeed,
    ..StackBehaviour::PLAIN
};
