//! What torchtune holds, read from torchtune 0.6.

use crate::tools::import::{Reader, StackFileError};
use peft_tune_core::predict::stack::{
    HostUpdates, LossForm, Number, Raised, Recompute, StackBehaviour, StackRefusal, Unable,
};

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    autocast: false,
    raises: Raised::Nothing,
    adapters: [Number::Half, Number::Half],
    loss: LossForm::Chunked(8),
    recompute: Recompute::Nothing,
    holds_logits: false,
    foreach: false,
    // It takes y as it is.
    dora_drops_inputs: false,
    host_updates: HostUpdates::PagedAdamW,
    refuses: &[
        StackRefusal {
            of: Unable::Experts,
            what: "it has no recipe for mixtures of experts",
            instead: "export for `trl` or `axolotl`",
        },
        StackRefusal {
            of: Unable::Int8,
            what: "its quantized base is NF4 only",
            instead: "take nf4_double or bf16",
        },
    ],
    ..StackBehaviour::PLAIN
};

/// Reads what a file says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    reader.choices.updates_in_backward = reader.keys.flag("optimizer_in_bwd")?.unwrap_or(false);
    Ok(())
}
