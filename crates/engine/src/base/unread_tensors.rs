//! Tensors of checkpoints that no model reads.

use peft_tune_core::architecture::{Architecture, LM_HEAD};

/// Whether a tensor is one that published checkpoints carry beside the parameters: buffers of old library versions, and a copy of the
/// embedding where the LM head is tied to it.
pub(super) fn is_ignored(name: &str, architecture: &Architecture) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with(".masked_bias")
        || (architecture.tied_embeddings && name == LM_HEAD)
        // Layers that draft further tokens.
        || name.starts_with("mtp.")
        || is_draft_layer(name, architecture)
        || is_unread_key(name, architecture)
}

/// Whether a tensor makes keys or values of a layer that reads those of another: published files have them, and nobody needs them.
fn is_unread_key(name: &str, architecture: &Architecture) -> bool {
    let Some((index, module)) = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once(".self_attn."))
    else {
        return false;
    };
    let source = index.parse().ok().and_then(|index| architecture.source_of(index));
    let makes = ["k_proj.", "v_proj.", "k_norm.", "v_norm."];
    source.is_some() && makes.iter().any(|start| module.starts_with(start))
}

/// Whether a tensor belongs to a layer behind the last one that predicts further tokens, which training leaves out.
fn is_draft_layer(name: &str, architecture: &Architecture) -> bool {
    let index = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split('.').next());
    let index = index.and_then(|index| index.parse::<usize>().ok());
    let (layers, drafts) = (
        architecture.layers.len(),
        architecture.experts.as_ref().map_or(0, |experts| experts.draft_layers),
    );
    index.is_some_and(|index| (layers..layers + drafts).contains(&index))
}
