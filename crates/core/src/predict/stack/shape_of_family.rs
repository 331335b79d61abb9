//! Dimensions of a model of one of the engine's families, by the [`Architecture`] that the engine reads.

use super::shape::{ExpertShape, ModelShape};
use crate::architecture::{Architecture, Experts, KeyValueSource};

impl ModelShape {
    /// Dimensions of a family that was not compared with its stacks. Where its layers are not all those of one plain decoder, its
    /// weights are counted as the engine counts them, and all else is that of a plain decoder.
    pub(super) fn of_architecture(architecture: &Architecture) -> Self {
        let of = |size: usize| size as u64;
        let is_known = is_plain(architecture);
        let inputs = architecture.layer_inputs;
        let tables = inputs.map_or(0, |inputs| {
            of(inputs.vocabulary) * of(inputs.width) * of(architecture.layers.len())
        });
        Self {
            model_type: architecture.family.name().to_owned(),
            hidden: of(architecture.hidden_size),
            layers: of(architecture.layers.len()),
            heads: of(architecture.heads),
            kv_heads: of(architecture.kv_heads),
            head_dim: of(architecture.head_dim),
            intermediate: of(architecture.intermediate_size),
            vocabulary: of(architecture.vocabulary),
            tied_embeddings: architecture.tied_embeddings,
            is_gated: architecture.activation.is_gated(),
            qkv_bias: architecture.qkv_bias,
            norms: of(architecture.layer_norms().len()),
            head_norms: architecture.query_key_norm.is_there(),
            caps_scores: architecture.attention_soft_cap.is_some(),
            caps_logits: architecture.logit_soft_cap.is_some(),
            experts: architecture.experts.as_ref().map(experts_of),
            max_positions: Some(of(architecture.max_positions)),
            is_known,
            counted: (!is_known).then(|| architecture.parameter_count().total()),
            tables,
            stored: None,
        }
    }
}

fn experts_of(experts: &Experts) -> ExpertShape {
    ExpertShape {
        count: experts.count as u64,
        active: experts.chosen as u64,
        width: experts.intermediate_size as u64,
        shared: experts.shared.map_or(0, |shared| shared.intermediate_size as u64),
    }
}

/// Whether all layers are alike, with an attention of its own heads and one MLP, or a mixture.
fn is_plain(architecture: &Architecture) -> bool {
    let layers = &architecture.layers;
    let is_alike = architecture.attends_everywhere()
        && layers
            .iter()
            .all(|layer| layer.heads.is_none() && layer.keys == KeyValueSource::Projections);
    let is_mixture = |experts: &Experts| experts.sparse_layers() == layers.len() && !experts.branches;
    is_alike
        && architecture.latent.is_none()
        && architecture.layer_inputs.is_none()
        && !architecture.wide_mlp
        && !architecture.head_gates
        && architecture.experts.as_ref().is_none_or(is_mixture)
}
