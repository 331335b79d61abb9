//! What each family's `config.json` means: the switches of [`Architecture`] and the defaults of absent keys.
//!
//! Defaults are those of the family's configuration class in transformers, since published files leave them out.

use super::config::Config;
use super::rope_config::{self, RopeContext};
use super::{Activation, Architecture, ArchitectureError, Dtype, Family, LayerAttention, NormPlacement, multimodal};

/// More decoder layers than any model has; a larger number is a damaged file.
const MOST_LAYERS: usize = 4096;

/// Window of a sliding layer where the file names none.
const DEFAULT_WINDOW: usize = 4096;

/// Reads the architecture from the top object of a `config.json`.
pub(super) fn read(config: &Config) -> Result<Architecture, ArchitectureError> {
    let model_type = config.text("model_type")?;
    if model_type == multimodal::GEMMA3 {
        return Err(config.multimodal(model_type));
    }
    let Some(family) = Family::from_model_type(model_type) else {
        let supported = Family::ALL.iter().map(|(_, name)| *name).collect();
        return Err(config.unknown_family(model_type, supported));
    };
    let mut architecture = plain(config, family)?;
    match family {
        Family::Llama => llama(config, &mut architecture)?,
        Family::Mistral => mistral(config, &mut architecture)?,
        Family::Qwen2 => qwen2(config, &mut architecture)?,
        Family::Qwen3 => qwen3(config, &mut architecture)?,
        Family::Gemma2 => gemma2(config, &mut architecture)?,
        Family::Gemma3 => gemma3(config, &mut architecture)?,
        Family::Phi3 => phi3(config, &mut architecture)?,
    }
    Ok(architecture)
}

/// What all families share: full attention everywhere, one rope, no biases.
fn plain(config: &Config, family: Family) -> Result<Architecture, ArchitectureError> {
    let hidden_size = config.dimension("hidden_size")?;
    let heads = config.dimension("num_attention_heads")?;
    let kv_heads = config.optional_dimension("num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let rule = format!("a divisor of num_attention_heads {heads}");
        return Err(config.impossible("num_key_value_heads", kv_heads, rule));
    }
    let head_dim = head_dim(config, hidden_size, heads)?;
    let layers = config.dimension("num_hidden_layers")?;
    if layers > MOST_LAYERS {
        return Err(config.impossible("num_hidden_layers", layers, format!("at most {MOST_LAYERS}")));
    }
    let max_positions = config.dimension("max_position_embeddings")?;
    let gemma = matches!(family, Family::Gemma2 | Family::Gemma3);
    let context = RopeContext {
        head_dim,
        max_positions,
        default_base: 10_000.0,
    };
    let ropes = if family == Family::Gemma3 {
        let full = RopeContext {
            default_base: 1_000_000.0,
            ..context
        };
        rope_config::full_and_sliding(config, full)?.to_vec()
    } else {
        vec![rope_config::shared(config, context)?]
    };
    Ok(Architecture {
        family,
        dtype: dtype(config)?,
        vocabulary: config.dimension("vocab_size")?,
        hidden_size,
        intermediate_size: config.dimension("intermediate_size")?,
        heads,
        kv_heads,
        head_dim,
        max_positions,
        layers: vec![LayerAttention { window: None, rope: 0 }; layers],
        ropes,
        norm_epsilon: config.optional_positive("rms_norm_eps")?.unwrap_or(1e-6),
        norm_offset: 0.0,
        norm_placement: NormPlacement::Before,
        query_key_norm: false,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        fused_projections: false,
        activation: activation(config, gemma)?,
        tied_embeddings: config.flag("tie_word_embeddings", gemma)?,
        embedding_scale: None,
        attention_scale: (head_dim as f64).powf(-0.5),
        attention_soft_cap: None,
        logit_soft_cap: None,
    })
}

fn head_dim(config: &Config, hidden_size: usize, heads: usize) -> Result<usize, ArchitectureError> {
    if let Some(head_dim) = config.optional_dimension("head_dim")? {
        return Ok(head_dim);
    }
    if !hidden_size.is_multiple_of(heads) {
        let rule = format!("a divisor of hidden_size {hidden_size} where head_dim is absent");
        return Err(config.impossible("num_attention_heads", heads, rule));
    }
    Ok(hidden_size / heads)
}

fn dtype(config: &Config) -> Result<Option<Dtype>, ArchitectureError> {
    let key = if config.mentions("dtype") {
        "dtype"
    } else {
        "torch_dtype"
    };
    match config.optional_text(key)? {
        None => Ok(None),
        Some("float32") => Ok(Some(Dtype::F32)),
        Some("float16") => Ok(Some(Dtype::F16)),
        Some("bfloat16") => Ok(Some(Dtype::Bf16)),
        Some(other) => Err(config.unsupported(key, other, "float32, float16, bfloat16")),
    }
}

fn activation(config: &Config, gemma: bool) -> Result<Activation, ArchitectureError> {
    // Gemma's first files say `hidden_act: gelu` and mean the tanh form, which `hidden_activation` corrects.
    let (key, default) = if gemma {
        ("hidden_activation", "gelu_pytorch_tanh")
    } else {
        ("hidden_act", "silu")
    };
    match config.optional_text(key)?.unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        other => Err(config.unsupported(key, other, "silu, gelu_pytorch_tanh")),
    }
}

fn llama(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    let bias = config.flag("attention_bias", false)?;
    architecture.qkv_bias = bias;
    architecture.output_bias = bias;
    architecture.mlp_bias = config.flag("mlp_bias", false)?;
    Ok(())
}

fn mistral(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    // An absent window is the class's default; `null` says that there is none.
    let window = match config.optional_dimension("sliding_window")? {
        None if !config.mentions("sliding_window") => Some(DEFAULT_WINDOW),
        window => window,
    };
    for layer in &mut architecture.layers {
        layer.window = window;
    }
    Ok(())
}

fn qwen2(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    architecture.qkv_bias = true;
    qwen_windows(config, architecture)
}

fn qwen3(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    architecture.query_key_norm = true;
    let bias = config.flag("attention_bias", false)?;
    architecture.qkv_bias = bias;
    architecture.output_bias = bias;
    qwen_windows(config, architecture)
}

/// Layers from `max_window_layers` on slide, if `use_sliding_window` says so at all.
fn qwen_windows(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    if !config.flag("use_sliding_window", false)? {
        return Ok(());
    }
    let window = config.optional_dimension("sliding_window")?.unwrap_or(DEFAULT_WINDOW);
    let first = config.optional_count("max_window_layers")?.unwrap_or(28);
    set_windows(config, architecture, window, |index| index >= first)
}

fn gemma2(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    gemma(config, architecture)?;
    let cap = |key: &str, default: f64| match config.optional_positive(key)? {
        None if !config.mentions(key) => Ok(Some(default)),
        cap => Ok(cap),
    };
    architecture.attention_soft_cap = cap("attn_logit_softcapping", 50.0)?;
    architecture.logit_soft_cap = cap("final_logit_softcapping", 30.0)?;
    let window = config.optional_dimension("sliding_window")?.unwrap_or(DEFAULT_WINDOW);
    set_windows(config, architecture, window, |index| index % 2 == 0)
}

fn gemma3(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    gemma(config, architecture)?;
    if config.flag("use_bidirectional_attention", false)? {
        return Err(config.unsupported("use_bidirectional_attention", "true", "false"));
    }
    architecture.query_key_norm = true;
    architecture.attention_soft_cap = config.optional_positive("attn_logit_softcapping")?;
    architecture.logit_soft_cap = config.optional_positive("final_logit_softcapping")?;
    let window = config.optional_dimension("sliding_window")?.unwrap_or(DEFAULT_WINDOW);
    let pattern = config.optional_dimension("sliding_window_pattern")?.unwrap_or(6);
    set_windows(config, architecture, window, |index| (index + 1) % pattern != 0)?;
    for layer in &mut architecture.layers {
        layer.rope = usize::from(layer.window.is_some());
    }
    Ok(())
}

/// What Gemma 2 and 3 share.
fn gemma(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    architecture.norm_offset = 1.0;
    architecture.norm_placement = NormPlacement::BeforeAndBehind;
    architecture.embedding_scale = Some((architecture.hidden_size as f64).sqrt());
    let query_scale = config.optional_positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    architecture.attention_scale = query_scale.powf(-0.5);
    let bias = config.flag("attention_bias", false)?;
    architecture.qkv_bias = bias;
    architecture.output_bias = bias;
    Ok(())
}

fn phi3(config: &Config, architecture: &mut Architecture) -> Result<(), ArchitectureError> {
    architecture.fused_projections = true;
    let window = config.optional_dimension("sliding_window")?;
    for layer in &mut architecture.layers {
        layer.window = window;
    }
    Ok(())
}

/// Gives `window` to the layers that `layer_types` names as sliding or, where it is absent, that `slides` names.
fn set_windows(
    config: &Config,
    architecture: &mut Architecture,
    window: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<(), ArchitectureError> {
    let kinds = config.optional_texts("layer_types")?;
    if let Some(kinds) = &kinds
        && kinds.len() != architecture.layers.len()
    {
        let rule = format!(
            "{} entries, one for each of num_hidden_layers",
            architecture.layers.len()
        );
        return Err(config.impossible("layer_types", format!("{} entries", kinds.len()), rule));
    }
    for (index, layer) in architecture.layers.iter_mut().enumerate() {
        let sliding = match kinds.as_ref().map(|kinds| kinds[index]) {
            None => slides(index),
            Some("sliding_attention") => true,
            Some("full_attention") => false,
            Some(other) => {
                return Err(config.unsupported("layer_types", other, "full_attention, sliding_attention"));
            }
        };
        layer.window = sliding.then_some(window);
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::RopeScaling;

    const SIZES: &str = r#""vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256"#;

    fn parse(model_type: &str, more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(r#"{{"model_type": "{model_type}", {SIZES}{more}}}"#);
        Architecture::from_json(Path::new("config.json"), &text)
    }

    pub(in super::super) fn llama() -> Architecture {
        parse("llama", "").unwrap()
    }

    pub(in super::super) fn qwen3() -> Architecture {
        parse("qwen3", r#", "head_dim": 32"#).unwrap()
    }

    pub(in super::super) fn gemma3() -> Architecture {
        parse("gemma3_text", r#", "head_dim": 32, "sliding_window_pattern": 3"#).unwrap()
    }

    pub(in super::super) fn phi3() -> Architecture {
        parse("phi3", r#", "partial_rotary_factor": 0.5"#).unwrap()
    }

    fn windows(architecture: &Architecture) -> Vec<Option<usize>> {
        architecture.layers.iter().map(|layer| layer.window).collect()
    }

    #[test]
    fn both_spellings_of_the_rope_agree() {
        let old = parse(
            "llama",
            r#", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "torch_dtype": "bfloat16""#,
        );
        let new = parse(
            "llama",
            r#", "rope_parameters": {"rope_theta": 500000, "rope_type": "llama3", "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
                "dtype": "bfloat16""#,
        );
        assert_eq!(old.unwrap(), new.unwrap());
    }

    #[test]
    fn gemma3_reads_both_ropes_in_both_spellings() {
        let old = parse(
            "gemma3_text",
            r#", "head_dim": 32, "rope_theta": 1e6, "rope_local_base_freq": 1e4"#,
        );
        let new = parse(
            "gemma3_text",
            r#", "head_dim": 32, "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}"#,
        );
        assert_eq!(old.as_ref().unwrap(), &new.unwrap());
        assert_eq!(old.unwrap().layers[0].rope, 1);
    }

    #[test]
    fn windows_follow_each_family() {
        assert_eq!(windows(&parse("mistral", "").unwrap()), [Some(4096); 3]);
        let none = parse("mistral", r#", "sliding_window": null"#).unwrap();
        assert_eq!(windows(&none), [None; 3]);
        let qwen = r#", "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2"#;
        assert_eq!(windows(&parse("qwen2", qwen).unwrap()), [None, None, Some(8)]);
        let off = r#", "use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0"#;
        assert_eq!(windows(&parse("qwen2", off).unwrap()), [None; 3]);
        let gemma = parse("gemma2", r#", "sliding_window": 8"#).unwrap();
        assert_eq!(windows(&gemma), [Some(8), None, Some(8)]);
        let typed =
            r#", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"]"#;
        assert_eq!(windows(&parse("gemma2", typed).unwrap()), [None, Some(8), None]);
    }

    #[test]
    fn families_differ_in_their_switches() {
        assert!(parse("qwen2", "").unwrap().qkv_bias && !parse("qwen2", "").unwrap().output_bias);
        assert!(qwen3().query_key_norm && !llama().query_key_norm);
        let gemma = parse("gemma2", "").unwrap();
        assert_eq!(
            (gemma.attention_soft_cap, gemma.logit_soft_cap),
            (Some(50.0), Some(30.0))
        );
        assert!(gemma.tied_embeddings && gemma.norm_offset == 1.0);
        assert_eq!(phi3().ropes[0].rotary_dims, 8);
    }

    #[test]
    fn longrope_derives_its_amplitude_from_the_extension() {
        let factors = r#""short_factor": [1,1,1,1,1,1,1,1], "long_factor": [2,2,2,2,2,2,2,2]"#;
        let phi = parse(
            "phi3",
            &format!(r#", "original_max_position_embeddings": 64, "rope_scaling": {{"type": "longrope", {factors}}}"#),
        );
        let RopeScaling::LongRope { attention_factor, .. } = &phi.unwrap().ropes[0].scaling else {
            panic!("not longrope")
        };
        assert!((attention_factor - (1.0 + 4f64.ln() / 64f64.ln()).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn impossible_files_are_explained() {
        let message = |model_type, more| parse(model_type, more).unwrap_err().to_string();
        let heads = message("llama", r#", "num_key_value_heads": 3"#);
        assert!(heads.contains("must be a divisor of num_attention_heads 4"), "{heads}");
        let family = message("bert", "");
        assert!(
            family.contains("`bert`") && family.contains("llama, mistral"),
            "{family}"
        );
        let rope = message("llama", r#", "rope_scaling": {"type": "dynamic", "factor": 2}"#);
        assert!(
            rope.contains("key `rope_scaling.type`") && rope.contains("`dynamic`"),
            "{rope}"
        );
        let odd = message("llama", r#", "head_dim": 15"#);
        assert!(odd.contains("head_dim"), "{odd}");
        let kinds = message("gemma2", r#", "layer_types": ["full_attention"]"#);
        assert!(kinds.contains("1 entries") && kinds.contains("3 entries"), "{kinds}");
    }
}
