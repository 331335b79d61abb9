//! The recipe: the typed settings of one fine-tuning, complete enough to train from.
//!
//! A search space fixes some of them and samples the rest; `recipe.yaml` files hold one. Every field has a default
//! except the model, the data and, for LoRA, nothing else: `peft-tune train` runs what is written here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of one fine-tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Local Hugging Face model directory, or a hub id such as `Qwen/Qwen2.5-0.5B`.
    pub model: String,
    pub data: DataSettings,
    /// LoRA settings; `null` trains every parameter of the base model (full fine-tuning).
    #[serde(default = "default_adapter")]
    pub adapter: Option<AdapterSettings>,
    /// How the frozen base weights are stored and multiplied.
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub batch: BatchSettings,
    #[serde(default)]
    pub gradient_checkpointing: Checkpointing,
    #[serde(default)]
    pub optimizer: OptimizerSettings,
    #[serde(default)]
    pub schedule: ScheduleSettings,
    #[serde(default)]
    pub training: TrainingSettings,
}

fn default_adapter() -> Option<AdapterSettings> {
    Some(AdapterSettings::default())
}

impl Recipe {
    /// A recipe with default settings for a model and its data.
    pub fn new(model: impl Into<String>, data: DataSettings) -> Self {
        Self {
            model: model.into(),
            data,
            adapter: default_adapter(),
            precision: Precision::default(),
            batch: BatchSettings::default(),
            gradient_checkpointing: Checkpointing::default(),
            optimizer: OptimizerSettings::default(),
            schedule: ScheduleSettings::default(),
            training: TrainingSettings::default(),
        }
    }
}

/// What to train and evaluate on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// Training file, or several that are read one after another (JSONL, JSON, CSV, Parquet or plain text).
    #[serde(with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub train: Vec<PathBuf>,
    /// Held-out data for the loss: file(s), or the fraction of the training rows to hold out (default 0.1).
    #[serde(default)]
    pub held_out: HeldOut,
    /// Format of a row; `auto` recognises it from the columns.
    #[serde(default)]
    pub format: DataFormat,
    /// Renames columns: the name the format expects (`instruction`, `messages`, `text`, ...) to the file's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Which tokens are training targets.
    #[serde(default)]
    pub loss_on: LossOn,
    /// Jinja chat template file that replaces the tokenizer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,
    /// Reads at most this many training rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<usize>,
}

/// Where the held-out rows come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "write a fraction such as 0.1, a file or a list of files")]
pub enum HeldOut {
    /// Fraction of the training rows, in (0, 1); which rows is decided by the recipe's seed.
    Fraction(f64),
    File(PathBuf),
    Files(Vec<PathBuf>),
}

impl Default for HeldOut {
    fn default() -> Self {
        Self::Fraction(0.1)
    }
}

/// Layout of one training row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// Recognised from the columns of the first row.
    #[default]
    Auto,
    /// `instruction`, optional `input`, `output`.
    Alpaca,
    /// `conversations` of `{from, value}`.
    Sharegpt,
    /// `messages` of `{role, content}` (OpenAI's chat layout).
    Messages,
    /// `prompt` and `completion`.
    PromptCompletion,
    /// `text`, or a plain text file.
    Text,
    /// `input_ids` and optional `labels` (-100 = not a target).
    Tokenized,
}

/// Which tokens of a row count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// The answers only, where the format tells prompt and answer apart; all tokens of `text` rows.
    #[default]
    Completions,
    /// Every token.
    All,
}

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
    /// Rank-stabilised scaling alpha / sqrt(r) (arXiv:2312.03732).
    pub rslora: bool,
    /// Weight-decomposed adaptation (arXiv:2402.09353).
    pub dora: bool,
    /// How lora_a and lora_b start.
    pub init: AdapterInit,
    /// Which biases are trained too.
    pub bias: AdapterBias,
    /// Adds a trainable bias to lora_b.
    pub lora_bias: bool,
    /// Other ranks for layers whose name ends in a key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rank_pattern: BTreeMap<String, usize>,
    /// Other alphas for layers whose name ends in a key.
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

/// Which linear layers get an adapter.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TargetPreset {
    AllLinear,
    Attention,
    Mlp,
}

/// How an adapter starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdapterInit {
    /// lora_a Kaiming-uniform with a = sqrt(5), lora_b zero (PEFT's default).
    #[default]
    Kaiming,
    /// lora_a normal with deviation 1/r, lora_b zero.
    Gaussian,
    /// Principal singular vectors of the weight, which keeps the rest (arXiv:2404.02948).
    Pissa,
}

/// Which biases train beside the adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdapterBias {
    #[default]
    None,
    LoraOnly,
    All,
}

/// Storage and arithmetic of the frozen base weights; adapters are always F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    Fp32,
    #[default]
    Bf16,
    Fp16,
    /// 8-bit block-wise weights.
    Int8,
    /// 4-bit NormalFloat weights in blocks of 64 (QLoRA).
    Nf4,
    /// [`Precision::Nf4`] whose block constants are quantised again.
    Nf4Double,
}

/// How tokens are batched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchSettings {
    /// Rows that go through the model at once.
    pub micro_batch: usize,
    /// Micro-batches whose gradients are added up before a step.
    pub gradient_accumulation: usize,
    /// Longest row in tokens; longer ones are cut.
    pub sequence_length: usize,
    /// Fills rows with several documents, each attending to itself only.
    pub packing: bool,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self {
            micro_batch: 4,
            gradient_accumulation: 1,
            sequence_length: 1024,
            packing: false,
        }
    }
}

impl BatchSettings {
    /// Rows in one step.
    pub fn global_batch(&self) -> usize {
        self.micro_batch * self.gradient_accumulation
    }
}

/// Which activations are kept for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Checkpointing {
    /// Keeps everything; the fastest and largest.
    #[default]
    None,
    /// Keeps the inputs of all layers and recomputes every second layer in the backward pass.
    EverySecond,
    /// Keeps layer inputs only and recomputes each layer in the backward pass.
    Full,
    /// As `full`, with the layer inputs moved to host memory.
    Offload,
}

/// The optimizer and its constants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    pub kind: OptimizerKind,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decoupled weight decay (added to the gradient for SGD).
    pub weight_decay: f64,
    pub beta1: f64,
    /// Absent: 0.999 for AdamW, 0.99 for Lion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f64>,
    pub epsilon: f64,
    /// Momentum of SGD and Muon.
    pub momentum: f64,
    /// Nesterov's form of the momentum (SGD).
    pub nesterov: bool,
    /// Learning rate of lora_b over that of lora_a (LoRA+, arXiv:2402.12354).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loraplus_ratio: Option<f64>,
    /// Global gradient norm above which gradients are scaled down; `null` never clips.
    pub max_grad_norm: Option<f64>,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            learning_rate: 2e-4,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: None,
            epsilon: 1e-8,
            momentum: 0.9,
            nesterov: false,
            loraplus_ratio: None,
            max_grad_norm: Some(1.0),
        }
    }
}

/// The update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OptimizerKind {
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    #[serde(rename = "sgd")]
    Sgd,
    #[serde(rename = "adamw_8bit")]
    AdamW8bit,
    #[serde(rename = "paged_adamw")]
    PagedAdamW,
    #[serde(rename = "paged_adamw_8bit")]
    PagedAdamW8bit,
    #[serde(rename = "lion")]
    Lion,
    #[serde(rename = "lion_8bit")]
    Lion8bit,
    #[serde(rename = "adafactor")]
    Adafactor,
    #[serde(rename = "muon")]
    Muon,
}

/// Course of the learning rate over the training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    pub kind: ScheduleKind,
    /// Linear warm-up: a number of steps (1 or more), or a fraction of all steps (below 1).
    pub warmup: f64,
}

impl ScheduleSettings {
    /// Warm-up steps of a training of `total` steps.
    pub fn warmup_steps(&self, total: u64) -> u64 {
        if self.warmup >= 1.0 {
            self.warmup as u64
        } else {
            (self.warmup * total as f64).ceil() as u64
        }
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Constant,
    /// Falls to zero in a straight line.
    Linear,
    /// Falls to zero along half a cosine.
    #[default]
    Cosine,
}

/// How long to train, and how often to look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingSettings {
    pub length: TrainingLength,
    /// Evaluates after every so many steps; only at the end where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate_every: Option<u64>,
    /// Evaluates on at most this many held-out rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation_rows: Option<usize>,
    /// Shuffles the rows in each epoch; otherwise they are taken in file order.
    pub shuffle: bool,
    /// Seed of initialisation, order and dropout.
    pub seed: u64,
}

impl Default for TrainingSettings {
    fn default() -> Self {
        Self {
            length: TrainingLength::Epochs(1.0),
            evaluate_every: None,
            evaluation_rows: None,
            shuffle: true,
            seed: 0,
        }
    }
}

/// Length of a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainingLength {
    Steps(u64),
    /// Tokens that go through the model, padding not counted.
    Tokens(u64),
    Epochs(f64),
}

/// One value or a list of them in the file; always a list here.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "write a file or a list of files")]
enum OneOrMany {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

mod one_or_many {
    use super::{OneOrMany, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        match paths {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(path) => vec![path],
            OneOrMany::Many(paths) => paths,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_below_one_is_a_fraction() {
        let warmup = |warmup| {
            ScheduleSettings {
                kind: ScheduleKind::Linear,
                warmup,
            }
            .warmup_steps(50)
        };
        assert_eq!((warmup(0.0), warmup(0.1), warmup(4.0)), (0, 5, 4));
    }

    #[test]
    fn rslora_divides_by_the_root_of_the_rank() {
        let mut adapter = AdapterSettings {
            rslora: true,
            ..Default::default()
        };
        assert_eq!(adapter.scaling(16, 32.0), 8.0);
        adapter.rslora = false;
        assert_eq!(adapter.scaling(16, 32.0), 2.0);
    }

    #[test]
    fn a_recipe_survives_json() {
        let data = DataSettings {
            train: vec!["train.jsonl".into()],
            ..Default::default()
        };
        let recipe = Recipe::new("model", data);
        let text = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&text).unwrap(), recipe);
    }
}
