//! Meaning of a `config.json`: dimensions, and the switches of its family's row.

use std::path::Path;

use serde_json::{Map, Value};

use super::config::{Config, LARGEST_DIMENSION};
use super::family::{Bias, Factor, Family, MlpWidth, QueryScale, SoftCap, Switches};
use super::{
    Activation, Architecture, ArchitectureError, Dtype, Experts, KeyValueSource, Latent, LayerAttention, LayerInputs,
    Mixer, QueryKeyNorm,
};
use super::{dropout, layer_heads, layers, multimodal, rope_config, shared_keys, unknown};

/// Decoder layers beyond what any model has; a larger number is a damaged file.
const MOST_LAYERS: usize = 4096;

impl Architecture {
    /// Reads a `config.json`, in the spelling of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) or 5
    /// (`rope_parameters`, `dtype`). Of a multimodal model it is the language model (`text_config`).
    ///
    /// # Errors
    /// A file that cannot be read, an unknown family, a missing key, and sizes that cannot go together.
    pub fn from_config(path: &Path) -> Result<Self, ArchitectureError> {
        read(&Config::read(path)?)
    }

    /// Reads the text of a file as [`Architecture::from_config`] does; `path` only names it in errors.
    pub fn from_json(path: &Path, text: &str) -> Result<Self, ArchitectureError> {
        read(&Config::parse(path, text)?)
    }

    /// Reads the object in a file as [`Architecture::from_config`] does; `path` only names it in errors.
    pub fn from_object(path: &Path, object: &Map<String, Value>) -> Result<Self, ArchitectureError> {
        read(&Config::new(path, object.clone()))
    }
}

/// Reads the architecture from the top object of a `config.json`.
fn read(config: &Config) -> Result<Architecture, ArchitectureError> {
    if let Some(text) = multimodal::text_model(config)? {
        let architecture = language_model(&text.config)?;
        return Ok(Architecture {
            within: Some(text.module),
            ..architecture
        });
    }
    language_model(config)
}

/// Reads the architecture of a language model from its own object.
fn language_model(config: &Config) -> Result<Architecture, ArchitectureError> {
    let model_type = config.text("model_type")?;
    let Some(family) = Family::from_model_type(model_type) else {
        return Err(unknown::error(config, model_type));
    };
    let switches = &family.row().switches;
    for key in switches.refused {
        config.check_off(key)?;
    }
    let mut architecture = of_family(config, family, switches)?;
    if let (Some(inputs), Some(_)) = (&architecture.layer_inputs, &architecture.experts) {
        // No published model has both.
        let rule = "0 where there are experts".to_owned();
        return Err(config.impossible("hidden_size_per_layer_input", inputs.width, rule));
    }
    architecture.layers = layers::read(config, switches, architecture.layers.len())?;
    if switches.full_heads {
        layer_heads::read(config, switches, &mut architecture)?;
    }
    if switches.shared_keys {
        shared_keys::read(config, &mut architecture)?;
    }
    check_heads(config, &architecture)?;
    Ok(architecture)
}

/// Refuses heads that are wider together than any dimension is: their product would overflow where sizes have 32 bits.
fn check_heads(config: &Config, architecture: &Architecture) -> Result<(), ArchitectureError> {
    let width = |index: usize| architecture.heads_of(index).head_dim.max(architecture.value_dim(index));
    let widest = (0..architecture.layers.len()).map(width).max().unwrap_or_default();
    match architecture.heads.saturating_mul(widest) <= LARGEST_DIMENSION {
        true => Ok(()),
        false => {
            let rule = format!("at most {LARGEST_DIMENSION} by the width {widest} of a head");
            Err(config.impossible("num_attention_heads", architecture.heads, rule))
        }
    }
}

/// All but the layers' windows and ropes.
fn of_family(config: &Config, family: Family, switches: &Switches) -> Result<Architecture, ArchitectureError> {
    let hidden_size = config.dimension("hidden_size")?;
    let heads = config.dimension("num_attention_heads")?;
    let kv_heads = match switches.kv_heads {
        Some(default) if !config.mentions("num_key_value_heads") => default,
        _ => config.optional_dimension("num_key_value_heads")?.unwrap_or(heads),
    };
    if !heads.is_multiple_of(kv_heads) {
        let rule = format!("a divisor of num_attention_heads {heads}");
        return Err(config.impossible("num_key_value_heads", kv_heads, rule));
    }
    let latent = switches.latent.then(|| Latent::read(config)).transpose()?;
    if latent.is_some() && kv_heads != heads {
        let rule = format!("num_attention_heads {heads}: each head has a key and a value of its own");
        return Err(config.impossible("num_key_value_heads", kv_heads, rule));
    }
    let (head_dim, turning) = match latent {
        // `head_dim` is that of the rotated part here, where it is written.
        Some(latent) => (latent.head_dim(), [latent.plain_dims, latent.rotary_dims]),
        None => {
            let head_dim = match switches.head_dim {
                Some(default) if !config.mentions("head_dim") => default,
                _ => head_dim(config, hidden_size, heads)?,
            };
            (head_dim, [0, head_dim])
        }
    };
    let layers = config.dimension("num_hidden_layers")?;
    if layers > MOST_LAYERS {
        return Err(config.impossible("num_hidden_layers", layers, format!("at most {MOST_LAYERS}")));
    }
    let max_positions = config.dimension("max_position_embeddings")?;
    let (activation_key, default_activation) = switches.activation;
    Ok(Architecture {
        family,
        within: None,
        dtype: dtype(config)?,
        vocabulary: config.dimension("vocab_size")?,
        hidden_size,
        intermediate_size: mlp_width(config, switches.mlp_width)?,
        heads,
        kv_heads,
        head_dim,
        max_positions,
        layers: vec![
            LayerAttention {
                mixer: Mixer::Attention,
                window: None,
                chunk: None,
                rope: Some(0),
                normed: true,
                heads: None,
                keys: KeyValueSource::default(),
            };
            layers
        ],
        ropes: rope_config::ropes(config, switches, turning, max_positions)?,
        norm_epsilon: config
            .optional_positive(switches.norm_epsilon)?
            .unwrap_or(switches.default_epsilon),
        norm_offset: switches.norm_offset,
        centred_norms: switches.centred_norms,
        norm_placement: switches.norm_placement,
        query_key_norm: match switches.query_key_norm_key {
            Some((key, default)) if !config.flag(key, default)? => QueryKeyNorm::None,
            _ => switches.query_key_norm,
        },
        value_norm: switches.value_norm,
        qkv_bias: bias(config, switches.qkv_bias)?,
        output_bias: bias(config, switches.output_bias)?,
        mlp_bias: bias(config, switches.mlp_bias)?,
        fused_qkv: switches.fused_qkv,
        fused_gate_up: switches.fused_gate_up,
        names: switches.names,
        activation: activation(config, activation_key, default_activation)?,
        tied_embeddings: tied_embeddings(config, switches)?,
        embedding_scale: factor(config, switches.embedding_scale, hidden_size)?,
        residual_scale: factor(config, switches.residual_scale, hidden_size)?,
        logit_scale: factor(config, switches.logit_scale, hidden_size)?,
        attention_scale: attention_scale(config, switches.query_scale, head_dim)?,
        attention_soft_cap: soft_cap(config, "attn_logit_softcapping", switches.attention_soft_cap)?,
        logit_soft_cap: soft_cap(config, "final_logit_softcapping", switches.logit_soft_cap)?,
        head_gates: switches.head_gates,
        sinks: switches.sinks,
        layer_scalar: switches.layer_scalar,
        wide_mlp: false,
        layer_inputs: match switches.layer_inputs {
            Some(width) => LayerInputs::read(config, width)?,
            None => None,
        },
        experts: switches
            .experts
            .map(|switches| Experts::read(config, &switches, layers))
            .transpose()?
            .flatten(),
        latent,
        dropout: dropout::read(config, switches.dropout)?,
    })
}

fn tied_embeddings(config: &Config, switches: &Switches) -> Result<bool, ArchitectureError> {
    let of_all = config.flag("tie_word_embeddings", switches.tied_embeddings)?;
    match switches.tied_key {
        Some(key) => config.flag(key, of_all),
        None => Ok(of_all),
    }
}

/// The width of the MLP.
fn mlp_width(config: &Config, width: MlpWidth) -> Result<usize, ArchitectureError> {
    let key = match width {
        MlpWidth::Key(key) => return config.dimension(key),
        MlpWidth::Blocks => "block_ff_dim",
    };
    let written = match config.optional_dimension(key)? {
        Some(written) => written,
        None => config.dimension("intermediate_size")?,
    };
    if !config.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(written);
    }
    const FACTOR: &str = "block_ffn_dim_multiplier";
    let factor = config.optional_positive(FACTOR)?;
    if factor.is_none() && config.mentions(FACTOR) {
        // `null` says that two thirds are all.
        return Ok((2 * written / 3).max(1));
    }
    let factor = factor.unwrap_or(1.0);
    let multiple = config.optional_dimension("block_multiple_of")?.unwrap_or(256);
    let wanted = (factor * (2 * written / 3) as f64) as usize;
    let width = wanted.div_ceil(multiple).saturating_mul(multiple);
    if width == 0 || width > LARGEST_DIMENSION {
        return Err(config.impossible(
            FACTOR,
            factor,
            format!("such that the MLP is 1 to {LARGEST_DIMENSION} wide, and not {width}"),
        ));
    }
    Ok(width)
}

/// A factor of the model; absent where it is 1.
fn factor(config: &Config, factor: Factor, hidden_size: usize) -> Result<Option<f64>, ArchitectureError> {
    let factor = match factor {
        Factor::None => return Ok(None),
        Factor::RootHidden => (hidden_size as f64).sqrt(),
        Factor::Key(key, default) => config.optional_positive(key)?.unwrap_or(default),
        Factor::Inverse(key) => 1.0 / config.optional_positive(key)?.unwrap_or(1.0),
    };
    Ok(Some(factor).filter(|factor| *factor != 1.0))
}

fn attention_scale(config: &Config, scale: QueryScale, head_dim: usize) -> Result<f64, ArchitectureError> {
    Ok(match scale {
        QueryScale::HeadDim => (head_dim as f64).powf(-0.5),
        QueryScale::Yarn => (head_dim as f64).powf(-0.5) * rope_config::score_magnitude(config)?.powi(2),
        QueryScale::Scalar(default) => {
            let scalar = config.optional_positive("query_pre_attn_scalar")?;
            scalar.unwrap_or(default).powf(-0.5)
        }
        QueryScale::One => 1.0,
        QueryScale::Key(key) => config.optional_positive(key)?.unwrap_or(1.0),
    })
}

fn bias(config: &Config, bias: Bias) -> Result<bool, ArchitectureError> {
    match bias {
        Bias::Never => Ok(false),
        Bias::Always => Ok(true),
        Bias::Key(key) => config.flag(key, false),
        Bias::Unless(key) => config.flag(key, true),
    }
}

fn soft_cap(config: &Config, key: &str, cap: SoftCap) -> Result<Option<f64>, ArchitectureError> {
    match cap {
        SoftCap::Never => Ok(None),
        SoftCap::Default(default) if !config.mentions(key) => Ok(Some(default)),
        SoftCap::WhereSet | SoftCap::Default(_) => config.optional_positive(key),
    }
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
    let key = if config.value("dtype").is_some() {
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

fn activation(config: &Config, key: &'static str, default: Activation) -> Result<Activation, ArchitectureError> {
    match config.optional_text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        // Without a gate it goes with the family's other layers only.
        Some("xielu") if default == Activation::Xielu => Ok(default),
        Some(other) => Err(config.unsupported(key, other, "silu, gelu_pytorch_tanh")),
    }
}

#[cfg(test)]
pub(super) mod tests {
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
        assert_eq!(old.unwrap().layers[0].rope, Some(1));
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
        assert!(qwen3().query_key_norm.is_there() && !llama().query_key_norm.is_there());
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
    fn keys_that_a_family_has_no_place_for_change_nothing_and_null_is_no_default() {
        let text = |more: &str| {
            format!(
                r#"{{"model_type": "seed_oss", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176,
                "num_hidden_layers": 1, "num_attention_heads": 16, "max_position_embeddings": 256{more}}}"#
            )
        };
        let heads = |more: &str| {
            let model = Architecture::from_json(Path::new("config.json"), &text(more)).unwrap();
            (model.head_dim, model.kv_heads)
        };
        assert_eq!(heads(""), (128, 8));
        assert_eq!(heads(r#", "head_dim": null, "num_key_value_heads": null"#), (4, 16));
        let normalised = |more: &str| {
            let experts = format!(r#", "num_local_experts": 4, "num_experts_per_tok": 2{more}"#);
            let model = parse("mixtral", &experts).unwrap();
            model.experts.unwrap().router.normalised
        };
        assert!(normalised("") && normalised(r#", "norm_topk_prob": false"#));
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
