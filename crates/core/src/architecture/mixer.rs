//! Mixers of the tokens of a decoder layer: attention, or what stands in its place in some layers.

use serde::Serialize;

use super::config::{Config, LARGEST_DIMENSION};
use super::{ArchitectureError, LinearModule, LinearRole, TensorShape};

/// Mixer of the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    Attention,
    /// c conv(b x) of three projections (LFM2).
    Convolution(ShortConvolution),
    /// The gated delta rule (Qwen3.5).
    DeltaRule(DeltaRule),
}

/// A causal convolution of each channel by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShortConvolution {
    /// Tokens that a channel reads, its own among them.
    pub taps: usize,
}

/// The gated delta rule behind a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaRule {
    /// Taps of the convolution.
    pub taps: usize,
    /// Hk, heads of queries and keys; divides `value_heads`.
    pub key_heads: usize,
    /// Hv
    pub value_heads: usize,
    /// dk
    pub key_width: usize,
    /// dv
    pub value_width: usize,
}

/// Mixers that the layers of a family have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixers {
    Attention,
    /// Convolutions in `conv` layers of `layer_types`, or in those that `full_attn_idxs` does not list.
    Convolutions,
    /// Delta rules in `linear_attention` layers of `layer_types`, or in all but every n-th, n that of `full_attention_interval`.
    DeltaRules,
}

/// Tensors of mixers that never train, by the end of their names.
const FROZEN: [&str; 4] = [
    ".conv.conv.weight",
    ".linear_attn.conv1d.weight",
    ".linear_attn.A_log",
    ".linear_attn.dt_bias",
];

/// Name of the norm behind a delta rule, without the layer's name. Its weight is never one less than its factor.
pub const GATED_NORM: &str = "linear_attn.norm.weight";

/// Whether the tensor `name` belongs to a mixer and never trains.
pub(crate) fn is_frozen(name: &str) -> bool {
    FROZEN.iter().any(|ending| name.ends_with(ending))
}

impl Mixer {
    /// The linear layers that stand in the place of attention's, where others do.
    pub(super) fn modules(&self, hidden: usize) -> Option<Vec<LinearModule>> {
        let input = |name, out_features| LinearModule::without_bias(LinearRole::MixerInput, name, hidden, out_features);
        let output = |name, in_features| LinearModule::without_bias(LinearRole::Output, name, in_features, hidden);
        match self {
            Self::Attention => None,
            Self::Convolution(_) => Some(vec![input("conv.in_proj", 3 * hidden), output("conv.out_proj", hidden)]),
            Self::DeltaRule(rule) => Some(vec![
                input("linear_attn.in_proj_qkv", rule.input_width()),
                input("linear_attn.in_proj_z", rule.output_width()),
                input("linear_attn.in_proj_b", rule.value_heads),
                input("linear_attn.in_proj_a", rule.value_heads),
                output("linear_attn.out_proj", rule.output_width()),
            ]),
        }
    }

    /// Widths of the projections that are rows of one linear layer of its input with so many rows.
    pub(super) fn split_input(&self, hidden: usize, rows: usize) -> Vec<usize> {
        match self {
            Self::Convolution(_) => vec![hidden; 3],
            Self::Attention | Self::DeltaRule(_) => vec![rows],
        }
    }

    /// Tensors of the mixer beside the linear layers, by their names inside the layer.
    pub fn tensors(&self, hidden: usize) -> Vec<TensorShape> {
        let tensor = |name: &str, shape: Vec<usize>| TensorShape {
            name: name.to_owned(),
            shape,
        };
        match self {
            Self::Attention => Vec::new(),
            Self::Convolution(convolution) => vec![tensor("conv.conv.weight", vec![hidden, 1, convolution.taps])],
            Self::DeltaRule(rule) => vec![
                tensor("linear_attn.conv1d.weight", vec![rule.input_width(), 1, rule.taps]),
                tensor("linear_attn.A_log", vec![rule.value_heads]),
                tensor("linear_attn.dt_bias", vec![rule.value_heads]),
                tensor(GATED_NORM, vec![rule.value_width]),
            ],
        }
    }
}

impl DeltaRule {
    /// Queries, keys and values of a token.
    pub fn input_width(&self) -> usize {
        2 * self.key_heads * self.key_width + self.output_width()
    }

    /// Values of a token.
    pub fn output_width(&self) -> usize {
        self.value_heads * self.value_width
    }

    /// Values of a head's state.
    pub fn state(&self) -> usize {
        self.key_width * self.value_width
    }
}

/// The mixers of `count` layers.
pub(super) fn read(config: &Config, mixers: Mixers, count: usize) -> Result<Vec<Mixer>, ArchitectureError> {
    let (kind, other, names) = match mixers {
        Mixers::Attention => return Ok(vec![Mixer::Attention; count]),
        Mixers::Convolutions => ("conv", convolution(config)?, "full_attention, conv"),
        Mixers::DeltaRules => (
            "linear_attention",
            delta_rule(config)?,
            "full_attention, linear_attention",
        ),
    };
    let mixer = |attends: bool| if attends { Mixer::Attention } else { other };
    if let Some(kinds) = config.optional_texts("layer_types")? {
        if kinds.len() != count {
            let rule = format!("{count} entries, one for each of num_hidden_layers");
            return Err(config.impossible("layer_types", format!("{} entries", kinds.len()), rule));
        }
        let of_kind = |name: &str| match name {
            "full_attention" => Ok(mixer(true)),
            name if name == kind => Ok(mixer(false)),
            unknown => Err(config.unsupported("layer_types", unknown, names)),
        };
        return kinds.into_iter().map(of_kind).collect();
    }
    if mixers == Mixers::Convolutions {
        let listed = config.optional_counts("full_attn_idxs")?;
        let attends = |index: usize| listed.as_ref().is_none_or(|listed| listed.contains(&index));
        return Ok((0..count).map(|index| mixer(attends(index))).collect());
    }
    let nth = config.optional_dimension("full_attention_interval")?.unwrap_or(4);
    Ok((0..count).map(|index| mixer((index + 1) % nth == 0)).collect())
}

fn convolution(config: &Config) -> Result<Mixer, ArchitectureError> {
    let taps = config.optional_dimension("conv_L_cache")?.unwrap_or(3);
    Ok(Mixer::Convolution(ShortConvolution { taps }))
}

fn delta_rule(config: &Config) -> Result<Mixer, ArchitectureError> {
    let dimension = |key: &str, default: usize| Ok(config.optional_dimension(key)?.unwrap_or(default));
    let rule = DeltaRule {
        taps: dimension("linear_conv_kernel_dim", 4)?,
        key_heads: dimension("linear_num_key_heads", 16)?,
        value_heads: dimension("linear_num_value_heads", 32)?,
        key_width: dimension("linear_key_head_dim", 128)?,
        value_width: dimension("linear_value_head_dim", 128)?,
    };
    if !rule.value_heads.is_multiple_of(rule.key_heads) {
        let rule_of_heads = format!("a divisor of linear_num_value_heads {}", rule.value_heads);
        return Err(config.impossible("linear_num_key_heads", rule.key_heads, rule_of_heads));
    }
    if rule.input_width() > LARGEST_DIMENSION {
        let bound = format!("such that queries, keys and values are at most {LARGEST_DIMENSION} wide together");
        return Err(config.impossible("linear_num_value_heads", rule.value_heads, bound));
    }
    Ok(Mixer::DeltaRule(rule))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::architecture::Architecture;

    fn parse(text: &str) -> Result<Architecture, ArchitectureError> {
        Architecture::from_json(Path::new("config.json"), text)
    }

    /// Sizes that the files of LFM2 350M, 700M and 1.2B say, and how many parameters these have.
    const LFM2: [(usize, usize, usize, usize); 3] = [
        (1024, 6656, 16, 354_483_968),
        (1536, 10_240, 24, 742_489_344),
        (2048, 12_288, 32, 1_170_340_608),
    ];

    fn lfm2(hidden: usize, wide: usize, heads: usize) -> String {
        format!(
            r#"{{"model_type": "lfm2", "block_auto_adjust_ff_dim": true, "block_ff_dim": {wide}, "block_ffn_dim_multiplier": 1.0,
                "block_multiple_of": 256, "conv_L_cache": 3, "conv_bias": false, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
                "hidden_size": {hidden}, "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_attention_heads": {heads},
                "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta": 1000000.0, "vocab_size": 65536}}"#
        )
    }

    #[test]
    fn published_files_of_lfm2_have_their_number_of_parameters() {
        for (hidden, wide, heads, parameters) in LFM2 {
            let model = parse(&lfm2(hidden, wide, heads)).unwrap();
            assert_eq!(model.parameter_count().total(), parameters as u64, "{hidden}");
            let attending = (0..16).filter(|index| model.layers[*index].mixer == Mixer::Attention);
            assert_eq!(attending.collect::<Vec<_>>(), [2, 5, 8, 10, 12, 14]);
            assert!(
                model
                    .layers
                    .iter()
                    .all(|layer| layer.rope.is_some() == (layer.mixer == Mixer::Attention))
            );
        }
    }

    #[test]
    fn the_head_of_lfm2_is_tied_unless_the_file_says_no() {
        let text = lfm2(1024, 6656, 16);
        assert!(parse(&text).unwrap().tied_embeddings);
        for key in ["tie_embedding", "tie_word_embeddings"] {
            let untied = text.replacen('{', &format!(r#"{{"{key}": false, "#), 1);
            assert!(!parse(&untied).unwrap().tied_embeddings, "{key}");
        }
    }

    #[test]
    fn widths_of_lfm2_are_adjusted_where_the_file_says_so() {
        let text = lfm2(1024, 6656, 16);
        let width = |text: &str| parse(text).unwrap().intermediate_size;
        assert_eq!(width(&text), 4608);
        assert_eq!(
            width(&text.replace(r#"adjust_ff_dim": true"#, r#"adjust_ff_dim": false"#)),
            6656
        );
        assert_eq!(width(&text.replace(r#"multiplier": 1.0"#, r#"multiplier": 1.3"#)), 5888);
    }

    #[test]
    fn mistakes_name_key_and_rule() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        let kinds = lfm2(1024, 6656, 16).replace(
            "\"full_attn_idxs\": [2, 5, 8, 10, 12, 14]",
            r#""layer_types": ["conv"]"#,
        );
        assert!(message(&kinds).contains("1 entries"), "{}", message(&kinds));
        let other = kinds.replace(r#"["conv"]"#, &format!("[{}\"mamba\"]", "\"conv\", ".repeat(15)));
        assert!(message(&other).contains("`mamba`"), "{}", message(&other));
        let bias = lfm2(1024, 6656, 16).replace(r#"conv_bias": false"#, r#"conv_bias": true"#);
        assert!(message(&bias).contains("`conv_bias`"), "{}", message(&bias));
    }

    /// Qwen3.5 9B, as its configuration class has it where the file says nothing.
    const QWEN: &str = r#"{"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768}"#;

    #[test]
    fn every_fourth_layer_of_qwen_attends_with_gates() {
        let model = parse(QWEN).unwrap();
        let attending = (0..32).filter(|index| model.mixer(*index) == Mixer::Attention);
        assert_eq!(attending.collect::<Vec<_>>(), [3, 7, 11, 15, 19, 23, 27, 31]);
        assert_eq!((model.head_dim, model.ropes[0].rotary_dims), (256, 64));
        let rows = |index: usize| {
            let modules = model.layer_modules(index).into_iter();
            modules
                .map(|module| (module.name, module.out_features))
                .collect::<Vec<_>>()
        };
        assert_eq!(rows(3)[0], ("self_attn.q_proj", 2 * 16 * 256));
        let inputs = [
            ("linear_attn.in_proj_qkv", 8192),
            ("linear_attn.in_proj_z", 4096),
            ("linear_attn.in_proj_b", 32),
            ("linear_attn.in_proj_a", 32),
            ("linear_attn.out_proj", 4096),
        ];
        assert_eq!(rows(0)[..5], inputs);
        let elements = model.tensors().into_iter().map(|tensor| tensor.elements());
        assert_eq!(model.parameter_count().total(), elements.sum::<usize>() as u64);
        let heads = parse(&QWEN.replace('{', r#"{"linear_num_key_heads": 5, "#))
            .unwrap_err()
            .to_string();
        assert!(
            heads.contains("`linear_num_key_heads`") && heads.contains("a divisor"),
            "{heads}"
        );
        let wide = QWEN.replace(
            '{',
            r#"{"linear_num_value_heads": 16777216, "linear_value_head_dim": 16777216, "#,
        );
        let wide = parse(&wide).unwrap_err().to_string();
        assert!(wide.contains("`linear_num_value_heads`"), "{wide}");
    }

    #[test]
    fn counts_agree_with_the_tensors() {
        for (hidden, wide, heads, _) in LFM2 {
            let model = parse(&lfm2(hidden, wide, heads)).unwrap();
            let elements = model.tensors().into_iter().map(|tensor| tensor.elements());
            assert_eq!(model.parameter_count().total(), elements.sum::<usize>() as u64);
        }
    }
}
