//! What TRL's SFTTrainer holds, read from TRL 1.16.

use crate::import::{Reader, StackFileError, choices};
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
    choices::of_trainer(reader, "attn_implementation")?;
    // Where nothing is said the head goes in tiles; other losses are made of all logits.
    let loss = reader.keys.text("loss_type")?;
    match loss.as_deref() {
        None | Some("chunked_nll") => {}
        // Losses of preferences that are not read are refused before.
        Some(_) if !reader.recipe.trainer.is_sft() => {}
        Some("nll") => reader.choices.loss = Some(LossForm::Full),
        Some(other) => {
            reader.choices.loss = Some(LossForm::Full);
            reader.note(format!(
                "`loss_type: {other}` is not carried over: the loss is weighted there, and here it is the mean of all targets"
            ));
        }
    }
    Ok(())
}
