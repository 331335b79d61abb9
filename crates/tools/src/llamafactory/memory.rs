//! What LLaMA-Factory holds, read from LLaMA-Factory 0.9.5.

use crate::import::{Reader, StackFileError, choices};
use peft_tune_core::predict::stack::{HostUpdates, Raised, Recompute, StackBehaviour};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    pads_to: 8,
    autocast: true,
    raises: Raised::Nothing,
    recompute: Recompute::Layers,
    foreach: false,
    liger_has_loss: true,
    host_updates: HostUpdates::DeepSpeed,
    unproven: Some("no measurement of LLaMA-Factory was compared"),
    ..StackBehaviour::PLAIN
};

/// Reads what a file says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    choices::of_trainer(reader, "flash_attn")?;
    if let Some(method) = reader
        .keys
        .text("quantization_method")?
        .filter(|method| !["bnb", "bitsandbytes"].contains(&method.as_str()))
    {
        let told = format!("`quantization_method: {method}` is not known here: weights of bitsandbytes are taken");
        reader.note(told.clone());
        reader.assume(told);
    }
    Ok(())
}
