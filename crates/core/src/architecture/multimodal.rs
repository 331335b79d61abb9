//! The language model inside of a multimodal checkpoint: Gemma 3 from 4B on.
//!
//! Such a `config.json` has the language model's keys in an object of its own, `text_config`, and leaves out what is the
//! default of its configuration class in transformers (`Gemma3TextConfig`), dimensions among them.

use serde_json::{Value, json};

use super::config::Config;
use super::{Architecture, ArchitectureError, read};

/// The `model_type` of a Gemma 3 with a vision tower.
pub(super) const GEMMA3: &str = "gemma3";

/// Reads the architecture of the language model, whether it is by itself or has other models beside it.
pub(super) fn language_model(config: &Config) -> Result<Architecture, ArchitectureError> {
    if config.text("model_type")? != GEMMA3 {
        return read::read(config);
    }
    let Some(mut text) = config.object("text_config")? else {
        return Err(config.missing("text_config"));
    };
    for (key, default) in gemma3_text_defaults() {
        text.set_default(key, default);
    }
    // The number type is that of the whole checkpoint.
    for key in ["dtype", "torch_dtype"] {
        if let Some(dtype) = config.value(key) {
            text.set_default(key, dtype.clone());
        }
    }
    read::read(&text)
}

/// What `Gemma3TextConfig` takes for keys that are absent, where [`read`] asks for them.
fn gemma3_text_defaults() -> [(&'static str, Value); 9] {
    [
        ("model_type", json!("gemma3_text")),
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::{Dtype, RopeScaling};

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
        language_model(&Config::parse(Path::new("config.json"), text).unwrap())
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

    #[test]
    fn a_language_model_by_itself_is_read_as_ever() {
        let alone = r#"{"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176,
            "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256}"#;
        let path = Path::new("config.json");
        assert_eq!(parse(alone).unwrap(), Architecture::from_json(path, alone).unwrap());
    }

    #[test]
    fn what_cannot_be_loaded_is_refused_with_a_way_out() {
        let text = published(SIZES[0].1);
        let error = Architecture::from_json(Path::new("config.json"), &text).unwrap_err();
        assert!(
            error.to_string().contains("multimodal") && error.to_string().contains("by itself"),
            "{error}"
        );
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
