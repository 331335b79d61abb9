//! What unsloth holds, read from unsloth 2026.10.

use crate::tools::import::{Reader, StackFileError, choices};
use peft_tune_core::predict::stack::{LossForm, Raised, Recompute, StackBehaviour, StackRefusal, Unable};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    autocast: true,
    raises: Raised::Nothing,
    loss: LossForm::FusedLinear,
    recompute: Recompute::LayersOffloaded,
    fused: true,
    fused_lora: true,
    holds_logits: false,
    foreach: false,
    launch_s: 12e-6,
    refuses: &[StackRefusal {
        of: Unable::SharedWeights,
        what: "it does not share weights out between devices",
        instead: "take one device, or `axolotl`",
    }],
    ..StackBehaviour::PLAIN
};

/// Reads what a script says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    choices::of_trainer(reader, "attn_implementation")?;
    reader.choices.fused = reader.keys.flag("use_liger_kernel")?.unwrap_or(false);
    Ok(())
}
