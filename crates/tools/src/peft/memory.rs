//! What transformers' Trainer holds, read from transformers 5.23, PEFT 0.21 and bitsandbytes 0.50.

use peft_tune_core::predict::stack::StackBehaviour;

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    ..StackBehaviour::PLAIN
};
