//! Layers that have the keys and values of an earlier layer (Gemma 4 E2B): the last `num_kv_shared_layers`.
//!
//! Each has those of the last layer before them that is of its kind, with a window or without.

use super::config::Config;
use super::{Architecture, ArchitectureError, KeyValueSource};

const COUNT: &str = "num_kv_shared_layers";

/// Reads which layers share, and whether their MLP is wider, into `architecture`, whose windows are known.
pub(super) fn read(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    let count = config.optional_count(COUNT)?.unwrap_or(0);
    let layers = architecture.layers.len();
    if count >= layers {
        return Err(config.impossible(COUNT, count, format!("below num_hidden_layers {layers}")));
    }
    architecture.wide_mlp = config.flag("use_double_wide_mlp", false)?;
    let (own, sharing) = architecture.layers.split_at_mut(layers - count);
    for layer in sharing {
        let is_alike = |other: &super::LayerAttention| other.window.is_some() == layer.window.is_some();
        let Some(source) = own.iter().rposition(is_alike) else {
            let rule = "such that layers of each kind, with a window and without, are left before those that share";
            return Err(config.impossible(COUNT, count, rule.to_owned()));
        };
        layer.keys = KeyValueSource::Layer(source);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::architecture::{Architecture, ArchitectureError};

    fn parse(more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(
            r#"{{"model_type": "gemma4_text", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
                "global_head_dim": 32, "max_position_embeddings": 256, "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 600, "layer_types": ["sliding_attention", "sliding_attention",
                    "full_attention", "sliding_attention", "full_attention"]{more}}}"#
        );
        Architecture::from_json(Path::new("config.json"), &text)
    }

    #[test]
    fn the_last_layers_have_the_keys_of_the_last_one_of_their_kind() {
        let model = parse(r#", "num_kv_shared_layers": 2, "use_double_wide_mlp": true"#).unwrap();
        let sources: Vec<_> = (0..5).map(|index| model.source_of(index)).collect();
        assert_eq!(sources, [None, None, None, Some(1), Some(2)]);
        assert_eq!(model.readers_of(1).collect::<Vec<_>>(), [3]);
        assert_eq!([1, 3].map(|index| model.inner_of(index)), [96, 192]);
        let names = |index| -> Vec<&str> {
            let modules = model.layer_modules(index).into_iter();
            modules
                .filter(|module| module.role.attends())
                .map(|module| module.name)
                .collect()
        };
        assert_eq!(names(4), ["self_attn.q_proj", "self_attn.o_proj"]);
    }

    #[test]
    fn counts_agree_with_the_tensors() {
        let model = parse(r#", "num_kv_shared_layers": 2, "use_double_wide_mlp": true"#).unwrap();
        let tensors = model.tensors();
        let elements: usize = tensors.iter().map(|tensor| tensor.elements()).sum();
        assert_eq!(model.parameter_count().total(), elements as u64);
        let shape = |name: &str| {
            tensors
                .iter()
                .find(|tensor| tensor.name == name)
                .map(|tensor| tensor.shape.clone())
        };
        assert_eq!(shape("model.embed_tokens_per_layer.weight"), Some(vec![600, 40]));
        assert_eq!(shape("model.per_layer_model_projection.weight"), Some(vec![40, 64]));
        assert_eq!(shape("model.layers.4.self_attn.k_norm.weight"), None);
    }

    #[test]
    fn what_cannot_be_shared_is_named() {
        let message = |more: &str| parse(more).unwrap_err().to_string();
        let all = message(r#", "num_kv_shared_layers": 5"#);
        assert!(
            all.contains("num_kv_shared_layers") && all.contains("num_hidden_layers 5"),
            "{all}"
        );
        let none = message(r#", "num_kv_shared_layers": 3"#);
        assert!(none.contains("layers of each kind"), "{none}");
        let table = message(r#", "vocab_size": 601"#);
        assert!(
            table.contains("vocab_size_per_layer_input") && table.contains("601"),
            "{table}"
        );
    }
}
