//! What unsloth holds, read from unsloth 2026.10.

use crate::tools::Tool;
use crate::tools::import::setting::packing_note;
use crate::tools::import::{Keys, StackConfig, StackFileError};
use crate::tools::trl::memory::of_trainer;
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

/// Reads what a script needs.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn setting(tool: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let mut config = of_trainer(tool, keys)?;
    packing_note(keys, "packing", &mut config)?;
    Ok(config)
}
