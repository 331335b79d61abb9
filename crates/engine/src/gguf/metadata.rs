//! Metadata of GGUF on a model's shape.

use super::{Layout, Metadata, Value};
use peft_tune_core::architecture::{Architecture, Rope, RopeScaling};

/// Metadata that is written of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelMetadata {
    pub keys: Metadata,
    /// Tensors that go with the position encoding.
    pub rope: Vec<(String, Vec<f32>)>,
}

/// Keys and values for `architecture`.
pub(crate) fn of_architecture(architecture: &Architecture, layout: &Layout<'_>) -> ModelMetadata {
    let number = |value: usize| Value::U32(u32::try_from(value).unwrap_or(u32::MAX));
    let float = |value: f64| Value::F32(value as f32);
    let mut keys = vec![
        ("context_length", number(architecture.max_positions)),
        ("embedding_length", number(architecture.hidden_size)),
        ("block_count", number(architecture.layers.len())),
        ("feed_forward_length", number(architecture.intermediate_size)),
        ("attention.head_count", number(architecture.heads)),
        ("attention.head_count_kv", number(architecture.kv_heads)),
        ("attention.key_length", number(architecture.head_dim)),
        ("attention.value_length", number(architecture.head_dim)),
        ("attention.layer_norm_rms_epsilon", float(architecture.norm_epsilon)),
        ("vocab_size", number(architecture.vocabulary)),
    ];
    let window = architecture.layers.iter().find_map(|layer| layer.window);
    keys.extend(window.map(|window| ("attention.sliding_window", number(window))));
    keys.extend(
        architecture
            .attention_soft_cap
            .map(|cap| ("attn_logit_softcapping", float(cap))),
    );
    keys.extend(
        architecture
            .logit_soft_cap
            .map(|cap| ("final_logit_softcapping", float(cap))),
    );
    let mut tensors = Vec::new();
    // The first rope is that of full layers; that of sliding ones is the family's constant in llama.cpp.
    if let Some(rope) = architecture.ropes.first() {
        keys.push(("rope.freq_base", float(rope.base)));
        keys.push(("rope.dimension_count", number(rope.rotary_dims)));
        scaling(rope, &mut keys, &mut tensors);
    }
    let named = |(key, value)| (format!("{}.{key}", layout.name), value);
    ModelMetadata {
        keys: keys.into_iter().map(named).collect(),
        rope: tensors,
    }
}

fn scaling(rope: &Rope, keys: &mut Vec<(&'static str, Value)>, tensors: &mut Vec<(String, Vec<f32>)>) {
    let number = |value: usize| Value::U32(u32::try_from(value).unwrap_or(u32::MAX));
    let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
    match &rope.scaling {
        RopeScaling::None | RopeScaling::Still => {}
        RopeScaling::Linear { factor } => {
            keys.push(("rope.scaling.type", Value::Text("linear".to_owned())));
            keys.push(("rope.scaling.factor", Value::F32(*factor as f32)));
        }
        // Divisors of the plain frequencies.
        RopeScaling::Llama3 { .. } => {
            let plain = Rope {
                scaling: RopeScaling::None,
                ..rope.clone()
            };
            let pairs = plain.frequencies(0).into_iter().zip(rope.frequencies(0));
            tensors.push((
                "rope_freqs.weight".to_owned(),
                pairs.map(|(plain, scaled)| plain / scaled).collect(),
            ));
        }
        RopeScaling::Yarn {
            factor,
            original_max_positions,
            ..
        } => {
            keys.push(("rope.scaling.type", Value::Text("yarn".to_owned())));
            keys.push(("rope.scaling.factor", Value::F32(*factor as f32)));
            keys.push(("rope.scaling.original_context_length", number(*original_max_positions)));
        }
        // No layout of such a family is known.
        RopeScaling::Proportional { .. } => {}
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max_positions,
            attention_factor,
        } => {
            keys.push(("rope.scaling.original_context_length", number(*original_max_positions)));
            keys.push(("rope.scaling.attn_factor", Value::F32(*attention_factor as f32)));
            tensors.push(("rope_factors_long.weight".to_owned(), narrow(long_factor)));
            tensors.push(("rope_factors_short.weight".to_owned(), narrow(short_factor)));
        }
    }
}
