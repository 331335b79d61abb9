//! What torchtune holds, read from torchtune 0.6.

use crate::import::{Reader, StackFileError};
use peft_tune_core::predict::stack::{
    HostUpdates, LossForm, Number, Raised, Recompute, StackBehaviour, StackRefusal, Unable,
};

/// Chunks of the hidden states in its usual loss.
const CHUNKS: u64 = 8;

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    autocast: false,
    raises: Raised::Nothing,
    adapters: [Number::Half, Number::Half],
    loss: LossForm::Chunked(CHUNKS),
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
    let keys = reader.keys;
    reader.choices.updates_in_backward = keys.flag("optimizer_in_bwd")?.unwrap_or(false);
    if keys.flag("fsdp_cpu_offload")?.unwrap_or(false) {
        reader.choices.offloads = true;
        reader.note("FSDP keeps weights and states in the host's memory there; here they lie on the device");
    }
    let Some(loss) = keys.part("loss", "loss.") else {
        return Ok(());
    };
    let class = loss.text("_component_")?.unwrap_or_default();
    let chunks = loss.count("num_output_chunks")?.unwrap_or(CHUNKS);
    reader.choices.loss = match class.rsplit('.').next().unwrap_or_default() {
        "CEWithChunkedOutputLoss" | "LinearCrossEntropyLoss" => Some(LossForm::Chunked(chunks)),
        "CrossEntropyLoss" => Some(LossForm::Full),
        _ => {
            reader.assume(format!(
                "`loss._component_: {class}` is not known here: counted as one in {CHUNKS} chunks"
            ));
            None
        }
    };
    Ok(())
}
