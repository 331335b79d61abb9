//! What TRL's SFTTrainer holds, read from TRL 1.16.

use crate::tools::import::{Reader, StackFileError, choices};
use peft_tune_core::predict::stack::{HostUpdates, LossForm, Number, Raised, Recompute, StackBehaviour};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    loads: Number::F32,
    autocast: true,
    raises: Raised::Nothing,
    adapters: [Number::F32, Number::Half],
    loss: LossForm::Tiled,
    recompute: Recompute::Layers,
    holds_logits: false,
    foreach: false,
    says_sharding: true,
    host_updates: HostUpdates::DeepSpeed,
    ..StackBehaviour::PLAIN
};

/// Reads what a file says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    choices::of_trainer(reader, "attn_implementation")
}
