//! The adapter's settings, with PEFT's names and meaning.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::named::named;

/// LoRA settings, with PEFT's meaning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdapterSettings {
    /// Rank r of the update B·A.
    pub rank: usize,
    /// Numerator of the scaling: alpha / r, or alpha / sqrt(r) with `rslora`.
    pub alpha: f64,
    /// Probability in [0, 1) that an element of an adapter's input is dropped.
    pub dropout: f64,
    /// Linear layers that get an adapter.
    pub target_modules: TargetModules,
    /// Parameters that get one too, by the end of their names: `experts.gate_up_proj`, `experts.down_proj` and others that are no
    /// linear layer's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target_parameters: Vec<String>,
    /// Rank-stabilised scaling alpha / sqrt(r) (arXiv:2312.03732).
    pub rslora: bool,
    /// Weight-decomposed adaptation (arXiv:2402.09353).
    pub dora: bool,
    /// How lora_a and lora_b start.
    pub init: AdapterInit,
    /// Biases that are trained too.
    pub bias: AdapterBias,
    /// Adds a trainable bias to lora_b.
    pub lora_bias: bool,
    /// Ranks of layers whose name ends in a key, in place of the adapter's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rank_pattern: BTreeMap<String, usize>,
    /// Alphas of layers whose name ends in a key, in place of the adapter's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Indices of the decoder layers that get adapters; all where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers_to_transform: Option<Vec<usize>>,
    /// Modules of the base model that are trained and saved whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules_to_save: Vec<String>,
    /// Starts from this PEFT adapter directory instead of a fresh one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_init: Option<PathBuf>,
}

impl Default for AdapterSettings {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            dropout: 0.0,
            target_modules: TargetModules::default(),
            target_parameters: Vec::new(),
            rslora: false,
            dora: false,
            init: AdapterInit::default(),
            bias: AdapterBias::default(),
            lora_bias: false,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            layers_to_transform: None,
            modules_to_save: Vec::new(),
            adapter_init: None,
        }
    }
}

impl AdapterSettings {
    /// Factor on B·A·x for a layer of rank `rank` and numerator `alpha`.
    pub fn scaling(&self, rank: usize, alpha: f64) -> f64 {
        if self.rslora {
            alpha / (rank as f64).sqrt()
        } else {
            alpha / rank as f64
        }
    }
}

/// Linear layers that get an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "write one of all-linear, attention, mlp, or a list of module names"
)]
pub enum TargetModules {
    /// A shorthand: `all-linear` (every linear layer but the LM head), `attention` (q, k, v, o) or `mlp`.
    Preset(TargetPreset),
    /// Module names as they end in the checkpoint, such as `q_proj`.
    Named(Vec<String>),
}

impl Default for TargetModules {
    fn default() -> Self {
        Self::Preset(TargetPreset::AllLinear)
    }
}

/// Shorthands for sets of target modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetPreset {
    AllLinear,
    Attention,
    Mlp,
}

/// Row of the table of shorthands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TargetPresetRow {
    #[serde(skip)]
    pub kind: TargetPreset,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// The layers in most families.
    pub modules: &'static [&'static str],
    /// Layers in the families that fuse some of them, beside the ones that are the same.
    pub fused_modules: &'static [&'static str],
}

const PRESETS: &[TargetPresetRow] = &[
    TargetPresetRow {
        kind: TargetPreset::AllLinear,
        name: "all-linear",
        aliases: &[],
        about: "Every linear layer but the LM head.",
        modules: &[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
        fused_modules: &["qkv_proj", "gate_up_proj", "input_linear", "output_linear"],
    },
    TargetPresetRow {
        kind: TargetPreset::Attention,
        name: "attention",
        aliases: &[],
        about: "q, k, v and o.",
        modules: &["q_proj", "k_proj", "v_proj", "o_proj"],
        fused_modules: &["qkv_proj"],
    },
    TargetPresetRow {
        kind: TargetPreset::Mlp,
        name: "mlp",
        aliases: &[],
        about: "gate, up and down.",
        modules: &["gate_proj", "up_proj", "down_proj"],
        fused_modules: &["gate_up_proj", "input_linear", "output_linear"],
    },
];

named!(
    TargetPreset,
    TargetPresetRow,
    PRESETS,
    "TargetPreset",
    "Shorthands for sets of target modules."
);

/// How an adapter starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdapterInit {
    #[default]
    Kaiming,
    Gaussian,
    Pissa,
}

/// Row of the table of starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AdapterInitRow {
    #[serde(skip)]
    pub kind: AdapterInit,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
}

const INITS: &[AdapterInitRow] = &[
    AdapterInitRow {
        kind: AdapterInit::Kaiming,
        name: "kaiming",
        aliases: &[],
        about: "lora_a Kaiming-uniform with a = sqrt(5), lora_b zero (PEFT's default).",
    },
    AdapterInitRow {
        kind: AdapterInit::Gaussian,
        name: "gaussian",
        aliases: &[],
        about: "lora_a normal with deviation 1/r, lora_b zero.",
    },
    AdapterInitRow {
        kind: AdapterInit::Pissa,
        name: "pissa",
        aliases: &[],
        about: "Principal singular vectors of the weight, which keeps the rest (arXiv:2404.02948).",
    },
];

named!(
    AdapterInit,
    AdapterInitRow,
    INITS,
    "AdapterInit",
    "How an adapter starts."
);

/// Biases that train beside the adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdapterBias {
    #[default]
    None,
    LoraOnly,
    All,
}
