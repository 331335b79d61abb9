//! What axolotl holds, read from axolotl 0.19.

use peft_tune_core::predict::stack::{HostUpdates, Raised, StackBehaviour};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    pads_to: 64,
    autocast: true,
    raises: Raised::Nothing,
    foreach: false,
    says_sharding: true,
    host_updates: HostUpdates::DeepSpeed,
    ..StackBehaviour::PLAIN
};
