//! Models of real sizes by name.

/// Name and `config.json` of each shape.
pub(super) const SHAPES: [(&str, &str); 5] = [
    (
        "qwen2.5-0.5b",
        r#"{"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
            "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}"#,
    ),
    (
        "llama-3.2-3b",
        r#"{"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
            "tie_word_embeddings": true, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0}"#,
    ),
    (
        "llama-3.1-8b",
        r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
            "tie_word_embeddings": false, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0}"#,
    ),
    (
        "llama-2-7b",
        r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "tie_word_embeddings": false,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
    ),
    ("tiny", TINY),
];

/// Fits everywhere.
pub(super) const TINY: &str = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 688, "vocab_size": 4096, "tie_word_embeddings": false,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

/// One activation of 2^20 of its tokens takes 256 GiB.
pub(super) const HUGE: &str = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 131072, "vocab_size": 4096, "tie_word_embeddings": false,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

/// Names of the shapes that are timed where none is named.
pub(super) fn names() -> Vec<String> {
    SHAPES.iter().take(3).map(|(name, _)| (*name).to_owned()).collect()
}

/// The `config.json` of a shape, or what shapes there are.
pub(super) fn config(shape: &str) -> Result<&'static str, String> {
    let found = SHAPES.iter().find(|(name, _)| *name == shape);
    found.map(|(_, config)| *config).ok_or_else(|| {
        format!(
            "no shape `{shape}`; there are {}",
            SHAPES.map(|(name, _)| name).join(", ")
        )
    })
}
