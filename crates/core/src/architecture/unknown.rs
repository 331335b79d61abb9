//! Message about a model whose family is not known: the nearest family, and what it would need that no family here has.

use serde_json::Value;

use super::config::Config;
use super::{ArchitectureError, Family, multimodal};

/// Keys that only mixtures of experts have.
const EXPERT_KEYS: &[&str] = &[
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// Keys that only models with a part of their own have, and what that part is.
const PARTS: &[(&[&str], &str)] = &[
    (EXPERT_KEYS, "a mixture of experts of a known layout"),
    (
        &[
            "mamba_d_state",
            "mamba_n_heads",
            "ssm_cfg",
            "state_size",
            "ssm_state_size",
        ],
        "state-space (Mamba) layers",
    ),
    (&["layer_norm_epsilon", "n_embd", "n_layer"], "the layout of GPT-2"),
    (&["alibi", "alibi_bias_max"], "ALiBi"),
    (&["attention_chunk_size"], "attention in chunks"),
    (&["is_encoder_decoder", "decoder_layers"], "an encoder"),
];

/// Keys of features that no family here has, of models that Gemma 4's families do not stand for.
const FULL_HEADS: &[(&[&str], &str)] = &[
    (
        &["global_head_dim", "num_global_key_value_heads", "per_layer_config"],
        "heads of another width in some layers",
    ),
    (&["attention_k_eq_v"], "values that are the keys"),
    (&["num_kv_shared_layers"], "layers that share keys and values"),
    (
        &["hidden_size_per_layer_input"],
        "inputs of each layer beside the stream",
    ),
];

/// Types of layers that families here have.
const LAYER_TYPES: [&str; 5] = [
    "full_attention",
    "sliding_attention",
    "attention",
    "conv",
    "linear_attention",
];

/// The error for a `model_type` that no family has.
pub(super) fn error(config: &Config, model_type: &str) -> ArchitectureError {
    let supported = Family::all().map(Family::name).chain(multimodal::names());
    let nearest = nearest(model_type, has(config, EXPERT_KEYS), has(config, LATENT_KEYS));
    config.unknown_family(
        model_type,
        nearest.name(),
        missing(config, nearest),
        supported.collect(),
    )
}

/// Keys that only latent attention has.
const LATENT_KEYS: &[&str] = &["kv_lora_rank"];

/// The family whose name has the longest beginning in common with `model_type`, among those with experts or those without, and
/// likewise with latent attention; where none has any the first of them, or llama.
fn nearest(model_type: &str, has_experts: bool, is_latent: bool) -> Family {
    let common = |family: &Family| {
        let pairs = family.name().chars().zip(model_type.chars());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let is_alike = |family: &Family| {
        let switches = &family.row().switches;
        let may_have = switches.experts.is_some_and(|experts| experts.enabled.is_some());
        (may_have || switches.experts.is_some() == has_experts) && switches.latent == is_latent
    };
    let mut alike = Family::all().filter(is_alike);
    let best = alike
        .clone()
        .max_by_key(|family| (common(family), std::cmp::Reverse(family.name().len())));
    let first = if is_latent { alike.next() } else { None };
    best.filter(|family| common(family) > 2)
        .or(first)
        .unwrap_or(Family::Llama)
}

/// Whether one of `keys` is there and not off.
fn has(config: &Config, keys: &[&str]) -> bool {
    let is_on = |key: &&str| match config.value(key) {
        None | Some(Value::Bool(false)) => false,
        Some(value) => value.as_u64() != Some(0),
    };
    keys.iter().any(is_on)
}

/// Features that the file asks for and no family here has, or only others than `nearest`.
fn missing(config: &Config, nearest: Family) -> Vec<String> {
    let of_others = match nearest.row().switches.full_heads {
        true => &[],
        false => FULL_HEADS,
    };
    let parts = PARTS.iter().chain(of_others).filter(|(keys, _)| has(config, keys));
    let mut missing: Vec<String> = parts.map(|(_, part)| (*part).to_owned()).collect();
    let kinds = config.optional_texts("layer_types").ok().flatten().unwrap_or_default();
    for kind in kinds {
        let layers = format!("`{kind}` layers");
        if !LAYER_TYPES.contains(&kind) && !missing.contains(&layers) {
            missing.push(layers);
        }
    }
    // The language model of a multimodal one has its keys in an object of its own.
    if let Ok(Some(text)) = config.object("text_config") {
        let inner = self::missing(&text, nearest).into_iter();
        missing.extend(inner.filter(|part| !missing.contains(part)).collect::<Vec<_>>());
        missing.push("a multimodal checkpoint of a known layout".to_owned());
    }
    missing
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::architecture::Architecture;

    fn message(text: &str) -> String {
        let error = Architecture::from_json(Path::new("config.json"), text).unwrap_err();
        error.to_string()
    }

    #[test]
    fn an_unknown_model_is_told_its_nearest_family_and_what_is_missing() {
        let next = message(r#"{"model_type": "qwen3_next", "num_experts": 512, "layer_types": ["mamba"]}"#);
        assert!(next.contains("`qwen3_next`") && next.contains("`qwen3_moe`"), "{next}");
        assert!(
            next.contains("a mixture of experts of a known layout, `mamba` layers"),
            "{next}"
        );
        let own = message(r#"{"model_type": "house_model", "num_local_experts": 0}"#);
        assert!(
            own.contains("`llama`") && own.contains("adopt --as-family llama"),
            "{own}"
        );
        assert!(own.contains("llama, mistral"), "{own}");
    }
}
