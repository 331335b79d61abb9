//! The language model inside of a multimodal checkpoint: Gemma 3 from 4B on, Mistral Small 3.1, Qwen-VL.
//!
//! Such a `config.json` has the language model's keys in an object of its own, `text_config`, and may leave out what is
//! the default of its configuration class in transformers. Everything beside the language model stays as it is: it takes
//! no part in a training on text.

use serde_json::{Value, json};

use super::ArchitectureError;
use super::config::Config;

/// A multimodal model with a language model of a known family.
struct MultimodalRow {
    /// Name of the model: its `model_type`.
    name: &'static str,
    /// The language model's `model_type` where `text_config` names none.
    text: &'static str,
    /// The module of transformers that holds the language model's embedding and layers, and the prefix of adapters' names.
    module: &'static str,
    /// Whether older files have the language model's keys at the top.
    flat: bool,
    /// Values of keys that `read` asks for and the file leaves out.
    defaults: fn() -> Vec<(&'static str, Value)>,
}

/// Module in which transformers keeps the language model of most.
const LANGUAGE_MODEL: &str = "model.language_model";

const ROWS: &[MultimodalRow] = &[
    MultimodalRow {
        name: "gemma3",
        text: "gemma3_text",
        module: LANGUAGE_MODEL,
        flat: false,
        defaults: gemma3_text_defaults,
    },
    MultimodalRow {
        name: "gemma4",
        text: "gemma4_text",
        module: LANGUAGE_MODEL,
        flat: false,
        defaults: gemma4_text_defaults,
    },
    MultimodalRow {
        name: "gemma4_unified",
        text: "gemma4_unified_text",
        module: LANGUAGE_MODEL,
        flat: false,
        defaults: gemma4_unified_text_defaults,
    },
    MultimodalRow {
        name: "mistral3",
        text: "mistral",
        module: LANGUAGE_MODEL,
        flat: false,
        defaults: Vec::new,
    },
    MultimodalRow {
        name: "qwen2_vl",
        text: "qwen2_vl_text",
        module: LANGUAGE_MODEL,
        flat: true,
        defaults: Vec::new,
    },
    MultimodalRow {
        name: "qwen2_5_vl",
        text: "qwen2_5_vl_text",
        module: LANGUAGE_MODEL,
        flat: true,
        defaults: Vec::new,
    },
    MultimodalRow {
        name: "qwen3_vl",
        text: "qwen3_vl_text",
        module: LANGUAGE_MODEL,
        flat: false,
        defaults: Vec::new,
    },
    MultimodalRow {
        name: "qwen3_5",
        text: "qwen3_5_text",
        module: LANGUAGE_MODEL,
        flat: false,
        defaults: Vec::new,
    },
    MultimodalRow {
        name: "llama4",
        text: "llama4_text",
        module: "language_model.model",
        flat: false,
        defaults: llama4_text_defaults,
    },
];

/// The language model of a multimodal model: its own configuration, and the module that it is in the whole one.
pub(super) struct TextModel {
    pub config: Config,
    pub module: &'static str,
}

/// The names of all multimodal models whose language model is known.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name)
}

/// The language model of `config`; `None` where it is no known multimodal model.
///
/// # Errors
/// A multimodal model without `text_config`.
pub(super) fn text_model(config: &Config) -> Result<Option<TextModel>, ArchitectureError> {
    let model_type = config.text("model_type")?;
    let Some(row) = ROWS.iter().find(|row| row.name == model_type) else {
        return Ok(None);
    };
    let mut text = match config.object("text_config")? {
        Some(text) => text,
        None if row.flat => config.clone(),
        None => return Err(config.missing("text_config")),
    };
    // Files from the time before language models had a type of their own name the whole model here, or nothing.
    if text.optional_text("model_type")?.is_none_or(|name| name == row.name) {
        text.set("model_type", json!(row.text));
    }
    if text.text("model_type")? == row.text {
        for (key, default) in (row.defaults)() {
            text.set_default(key, default);
        }
    }
    // The number type is that of the whole checkpoint, and the head is a part of the whole model.
    for key in ["dtype", "torch_dtype", "tie_word_embeddings"] {
        if let Some(value) = config.value(key) {
            text.set(key, value.clone());
        }
    }
    Ok(Some(TextModel {
        config: text,
        module: row.module,
    }))
}

/// Values that `Llama4TextConfig` takes for keys that are absent, where `read` asks for them.
fn llama4_text_defaults() -> Vec<(&'static str, Value)> {
    vec![
        ("vocab_size", json!(202_048)),
        ("hidden_size", json!(5120)),
        ("intermediate_size", json!(8192)),
        ("intermediate_size_mlp", json!(16384)),
        ("num_hidden_layers", json!(48)),
        ("num_attention_heads", json!(40)),
        ("num_key_value_heads", json!(8)),
        ("head_dim", json!(128)),
        ("max_position_embeddings", json!(131_072)),
        ("num_local_experts", json!(16)),
        ("num_experts_per_tok", json!(1)),
        ("rms_norm_eps", json!(1e-5)),
        ("use_qk_norm", json!(true)),
    ]
}

/// Values that `Gemma3TextConfig` takes for keys that are absent, where `read` asks for them.
fn gemma3_text_defaults() -> Vec<(&'static str, Value)> {
    vec![
        ("vocab_size", json!(262_208)),
        ("hidden_size", json!(2304)),
        ("intermediate_size", json!(9216)),
        ("num_hidden_layers", json!(26)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(256)),
        ("max_position_embeddings", json!(131_072)),
    ]
}

/// Values that `Gemma4TextConfig` takes for keys that are absent, where `read` asks for them.
fn gemma4_text_defaults() -> Vec<(&'static str, Value)> {
    vec![
        ("vocab_size", json!(262_144)),
        ("hidden_size", json!(2304)),
        ("intermediate_size", json!(9216)),
        ("num_hidden_layers", json!(30)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(256)),
        ("max_position_embeddings", json!(131_072)),
        ("hidden_size_per_layer_input", json!(256)),
        ("vocab_size_per_layer_input", json!(262_144)),
    ]
}

/// Values that `Gemma4UnifiedTextConfig` takes for keys that are absent, where `read` asks for them.
fn gemma4_unified_text_defaults() -> Vec<(&'static str, Value)> {
    let mut defaults = gemma4_text_defaults();
    for (key, value) in &mut defaults {
        match *key {
            "max_position_embeddings" => *value = json!(262_144),
            // It has none.
            "hidden_size_per_layer_input" => *value = json!(0),
            _ => {}
        }
    }
    defaults.push(("sliding_window", json!(1024)));
    defaults
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::{Architecture, Dtype, RopeScaling};

    /// The published dimensions: what the file of each size says in its `text_config`.
    const SIZES: [(&str, &str); 3] = [
        (
            "4b",
            r#""hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34"#,
        ),
        (
            "12b",
            r#""hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
               "num_attention_heads": 16, "num_key_value_heads": 8"#,
        ),
        (
            "27b",
            r#""hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
               "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168"#,
        ),
    ];

    fn published(text: &str) -> String {
        format!(
            r#"{{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 256,
                "torch_dtype": "bfloat16", "vision_config": {{"model_type": "siglip_vision_model", "hidden_size": 1152}},
                "text_config": {{"model_type": "gemma3_text", {text}, "sliding_window": 1024,
                    "rope_scaling": {{"factor": 8.0, "rope_type": "linear"}}}}}}"#
        )
    }

    fn parse(text: &str) -> Result<Architecture, ArchitectureError> {
        Architecture::from_json(Path::new("config.json"), text)
    }

    #[test]
    fn published_sizes_have_their_number_of_parameters() {
        // As transformers 5.23 counts those of `Gemma3ForCausalLM(config.text_config)`.
        let counted = [3_880_263_168, 11_766_034_176, 27_009_346_304];
        for ((name, size), parameters) in SIZES.into_iter().zip(counted) {
            let architecture = parse(&published(size)).unwrap();
            assert_eq!(architecture.parameter_count().total(), parameters, "{name}");
        }
    }

    #[test]
    fn absent_keys_are_those_of_the_configuration_class() {
        let model = parse(&published(SIZES[0].1)).unwrap();
        assert_eq!((model.heads, model.kv_heads, model.head_dim), (8, 4, 256));
        assert_eq!((model.vocabulary, model.max_positions), (262_208, 131_072));
        assert_eq!((model.dtype, model.tied_embeddings), (Some(Dtype::Bf16), true));
        assert_eq!(model.attention_scale, 1.0 / 16.0);
        let windows: Vec<_> = model.layers[..6].iter().map(|layer| layer.window).collect();
        assert_eq!(
            windows,
            [Some(1024), Some(1024), Some(1024), Some(1024), Some(1024), None]
        );
        assert_eq!(model.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 });
        assert_eq!(
            (model.ropes[1].base, &model.ropes[1].scaling),
            (10_000.0, &RopeScaling::None)
        );
    }

    /// The keys that every language model has.
    const TEXT: &str = r#""vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256"#;

    fn inside(model_type: &str, text_type: &str, more: &str) -> Architecture {
        let text = format!(
            r#"{{"model_type": "{model_type}", "torch_dtype": "bfloat16", {more}
                "text_config": {{"model_type": "{text_type}", {TEXT}}}}}"#
        );
        parse(&text).unwrap()
    }

    #[test]
    fn a_language_model_inside_is_the_one_by_itself_with_a_place() {
        for (model_type, text_type, family) in [
            ("mistral3", "mistral", "mistral"),
            ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2"),
            ("qwen3_vl", "qwen3_vl_text", "qwen3"),
        ] {
            let alone = parse(&format!(
                r#"{{"model_type": "{family}", "torch_dtype": "bfloat16", {TEXT}}}"#
            ));
            let expected = Architecture {
                within: Some("model.language_model"),
                ..alone.unwrap()
            };
            assert_eq!(inside(model_type, text_type, ""), expected, "{model_type}");
        }
    }

    #[test]
    fn llama_4_has_its_language_model_with_a_head_of_its_own() {
        let whole = parse(r#"{"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}"#).unwrap();
        assert_eq!(whole.within, Some("language_model.model"));
        assert_eq!((whole.layers.len(), whole.experts.as_ref().unwrap().count), (48, 16));
        for (name, inside) in [
            ("lm_head.weight", "language_model.lm_head.weight"),
            ("model.norm.weight", "language_model.model.norm.weight"),
        ] {
            assert_eq!(crate::architecture::name_within(whole.within, name), inside);
            assert_eq!(crate::architecture::name_alone(inside), name);
        }
    }

    #[test]
    fn the_whole_model_says_whether_the_head_is_tied() {
        let tied = r#""tie_word_embeddings": true,"#;
        assert!(inside("qwen3_vl", "qwen3_vl_text", tied).tied_embeddings);
        assert!(!inside("qwen3_vl", "qwen3_vl_text", "").tied_embeddings);
    }

    #[test]
    fn the_first_files_of_qwen_vl_have_the_keys_at_the_top() {
        let flat = format!(
            r#"{{"model_type": "qwen2_5_vl", "torch_dtype": "bfloat16", {TEXT},
                "rope_scaling": {{"type": "mrope", "mrope_section": [4, 2, 2]}}}}"#
        );
        let nested = inside("qwen2_5_vl", "qwen2_5_vl_text", "");
        assert_eq!(parse(&flat).unwrap(), nested);
    }

    #[test]
    fn mistakes_name_their_place() {
        let without = parse(r#"{"model_type": "gemma3"}"#).unwrap_err().to_string();
        assert!(without.contains("key `text_config` is missing"), "{without}");
        let wrong = parse(r#"{"model_type": "gemma3", "text_config": {"hidden_size": "wide"}}"#);
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.contains("key `text_config.hidden_size`"), "{wrong}");
    }
}
