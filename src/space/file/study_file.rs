//! The study file, key by key. The documentation of these fields is what editors show.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::name_or_map::name_or_map;
use super::{
    Bytes, ConfirmEntry, Count, Entries, FileValue, HourlyPrice, ParameterEntry, PrunerEntry, ScoreEntry, Seconds,
    ServeEntry, StopEntry, TrackEntry, WarmStartEntry,
};
use crate::space::loader::Loader;
use crate::space::recipe_metrics::RECIPE_METRICS;
use crate::tools::Tool;
use peft_tune_core::objective::{Direction, LOSS, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::quantity::{self, PositiveCount};
use peft_tune_core::recipe::{DataSettings, StudyLength, TrainingSettings};
use peft_tune_core::study::LauncherSettings;
use peft_tune_search::SamplerKind;

/// A tuning study: what to tune, within which space, for which objectives, at what cost.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "peft-tune study file")]
pub struct StudyFile {
    /// Name of the study in the results database; default: the file's name. `search` resumes the study of this name.
    pub study: Option<String>,
    /// Local Hugging Face model directory (relative to this file), or a hub id such as `Qwen/Qwen2.5-0.5B`.
    pub model: Option<String>,
    /// What to train and evaluate on; paths are relative to this file.
    pub data: Option<DataSettings>,
    /// Metrics to trade off, 1 to 4; default `[throughput, peak_memory, loss]`, with `reward_accuracy` for `loss` where `beta` is searched.
    #[serde(default = "default_objectives")]
    pub objectives: Vec<ObjectiveEntry>,
    /// Bounds by metric, such as `peak_memory: "<= 22 GiB"`; a setting that breaks one is never recommended.
    #[serde(default)]
    pub constraints: Entries<String>,
    /// The tool that will train: throughput and peak memory are then those predicted of it, the loss is the trial's own.
    #[serde(default)]
    #[schemars(schema_with = "stack_schema")]
    pub target_stack: Option<String>,
    /// The device that it will run on, such as `A100 40GB`: settings that do not fit there are not trained.
    pub target_device: Option<String>,
    /// The parameters: a value fixes one, a list or a range makes it searched.
    pub space: Entries<ParameterEntry>,
    /// What you would use without a search, by parameter: the first trial, which the recommended one is compared with. What
    /// is not said has the usual value: rank 16, alpha 32, all-linear, AdamW, bf16, and a learning rate by the model's width.
    #[serde(default)]
    pub baseline: Entries<FileValue>,
    /// What one trial does.
    #[serde(default)]
    pub trial: TrialEntry,
    /// Answers that each trained model generates to held-out prompts, and what scores them.
    pub score: Option<ScoreEntry>,
    /// Load under which each setting's model is served: metric `serve_ms_per_token`. Default: one sequence with the adapter beside
    /// the base weights, where an objective or a constraint asks for it.
    pub serve: Option<ServeEntry>,
    /// How long the exported recipe trains, and how often it evaluates; trials themselves follow `trial`. With `length: auto` the
    /// search finds how long: until more training no longer pays.
    pub training: Option<TrainingSettings<StudyLength>>,
    /// Budget at which the study ends.
    #[serde(default)]
    pub budget: BudgetEntry,
    /// Price of an hour of one device that the trials run on, in US dollars (`2.49/h`): what the search and full trainings cost
    /// is then said. Default: an unchecked one of the built-in list, where it has the device.
    pub price: Option<HourlyPrice>,
    /// Stops trials that cannot enter the front; default `dominance` where the training phase evaluates often enough.
    pub pruner: Option<PrunerEntry>,
    /// Ends the study before its budget when further trials bring next to nothing; default `none`.
    #[serde(default)]
    pub stop: StopEntry,
    /// Measures the recommended trial again before it is final; default on where throughput matters, off for commands.
    pub confirm: Option<ConfirmEntry>,
    /// Starts from earlier studies in the same database: `true` for those on the same model, data and machine, or a list of
    /// names; default false.
    #[serde(default)]
    pub warm_start: WarmStartEntry,
    /// Seed of every random number of the study; default 0.
    #[serde(default)]
    pub seed: u64,
    /// How the next parameters are chosen; default `auto`.
    #[serde(default)]
    pub sampler: SamplerEntry,
    /// What runs the trials: `native`, `trl` (TRL on PyTorch), `unsloth` (the same on models that unsloth loads, on a GPU), `auto`
    /// (whichever of the first two can), or a command of your own.
    #[serde(default)]
    pub backend: BackendEntry,
    /// How trial processes are started: `local`, `{slurm: {..}}`, `{ssh: {..}}`, `{kubernetes: {..}}`, or `{command: [..]}`.
    #[serde(default)]
    pub launcher: LauncherSettings,
    /// Experiment trackers that are kept up to date while the study is searched; `--track` adds to them. Paths are relative to
    /// this file.
    #[serde(default)]
    pub track: Vec<TrackEntry>,
}

fn default_objectives() -> Vec<ObjectiveEntry> {
    [THROUGHPUT, PEAK_MEMORY, LOSS].map(ObjectiveEntry::named).into()
}

fn stack_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = Tool::ALL.iter().flat_map(|tool| tool.names()).collect();
    json_schema!({"type": ["string", "null"], "enum": names})
}

/// An objective: the metric's name, or keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectiveEntry(pub ObjectiveDetails);

impl ObjectiveEntry {
    pub(in crate::space) fn named(metric: &str) -> Self {
        Self(ObjectiveDetails {
            metric: metric.to_owned(),
            direction: None,
            reference: None,
            known_after: None,
        })
    }
}

/// An objective written out.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveDetails {
    /// `throughput`, `peak_memory`, `loss`, `token_accuracy`, `token_accuracy_lost_percent`, `loss_kept_percent`,
    /// `top1_agreement_percent`, `retained_loss_increase` of `data.retain`, `base_kl`, `reward_accuracy` and `reward_margin` of
    /// preferences, `serve_ms_per_token`, what `score` measures, or any metric that a command backend reports.
    pub metric: String,
    /// Default: `maximize` for throughput and accuracies, `minimize` for anything else.
    pub direction: Option<Direction>,
    /// Value from which the hypervolume is measured, in the metric's own unit (`24 GiB`, `60k`, `2.5`).
    #[schemars(with = "Option<FileValue>")]
    pub reference: Option<FileValue>,
    /// Steps after which the metric is known, where it does not take a whole trial.
    #[serde(default, deserialize_with = "quantity::optional_count")]
    #[schemars(with = "Option<Count>")]
    pub known_after: Option<u64>,
}

/// What one trial does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrialEntry {
    /// Longest row in tokens; longer ones are cut. Default 1024. Search it in `space` instead, if you like.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub sequence_length: Option<NonZeroUsize>,
    /// Steps whose time and memory are measured, after the warm-up; default 5.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub profile_steps: Option<NonZeroU64>,
    /// Steps after which the warm-up counts as over even if steps still get faster; default 10.
    #[serde(deserialize_with = "quantity::optional_count")]
    #[schemars(with = "Option<Count>")]
    pub profile_warmup: Option<u64>,
    /// Length of the training phase in optimizer steps.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub training_steps: Option<NonZeroU64>,
    /// Length of the training phase in tokens (`60k`), which makes different batch sizes comparable; default 100k.
    pub training_tokens: Option<Count>,
    /// Length of the training phase in passes over the training rows.
    pub training_epochs: Option<f64>,
    /// Steps of a whole trial of a command backend, which the program is told; taken from finished trials where absent.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub steps: Option<NonZeroU64>,
    /// How the loss is measured.
    pub evaluation: EvaluationEntry,
    /// Device memory above which a trial counts as out of memory (`22 GiB`); the device's own where absent.
    pub memory_limit: Option<Bytes>,
    /// Wall time after which a trial is stopped (`10m`); none where absent.
    pub timeout: Option<Seconds>,
}

/// How the loss is measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationEntry {
    /// Evaluates on at most this many held-out rows; default all.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub rows: Option<NonZeroUsize>,
    /// Evaluations during the training phase, at equal distances, the last at its end; default 2.
    pub times: Option<NonZeroU64>,
    /// Compares each trained model with the same on fp32 base weights, which takes their memory too; metrics
    /// `loss_kept_percent` and `top1_agreement_percent`. Default: on where an objective or a constraint asks for one of them.
    pub accuracy_check: bool,
    /// Trains each setting in fp32 too, as long and on the same rows, and compares the accuracies: metric
    /// `token_accuracy_lost_percent`. Default: on where an objective or a constraint asks for it.
    pub fp32_training: bool,
    /// Compares each trained model's next-token distributions with those of the model before the training, on that model's own
    /// continuations of held-out prompts: metric `base_kl`. Default: on where an objective or a constraint asks for it.
    pub base_kl: bool,
}

/// Budget of a study: it ends at whichever comes first.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetEntry {
    /// Number of trials; default 40 where no time is given either.
    pub trials: Option<u64>,
    /// Wall time of the whole study (`30m`, `8h`).
    pub time: Option<Seconds>,
}

/// A sampler: its name, or its name with options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplerEntry(pub SamplerDetails);

/// A sampler with options.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplerDetails {
    /// Name of the sampler.
    pub kind: SamplerKind,
    /// Settings of this sampler; it refuses those it does not know.
    #[serde(default)]
    pub options: BTreeMap<String, FileValue>,
}

/// What runs the trials.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum BackendEntry {
    /// The built-in training engine.
    #[default]
    Native,
    /// TRL, in the Python of the active environment.
    Trl,
    /// unsloth, in the Python of the active environment.
    Unsloth,
    /// The built-in engine or TRL: which one, a search chooses where it begins.
    Auto,
    /// A command, or TRL, unsloth or the choice with settings of their own.
    Keys(BackendKeys),
}

impl BackendEntry {
    /// Whether a search is to choose the engine.
    pub(in crate::space) fn is_open(&self) -> bool {
        match self {
            Self::Auto => true,
            Self::Keys(keys) => keys.auto.is_some(),
            Self::Native | Self::Trl | Self::Unsloth => false,
        }
    }

    /// Loader of the trials that run, or may run, in a Python; `None` where none do.
    pub(in crate::space) fn loader(&self) -> Option<Loader> {
        match self {
            Self::Trl | Self::Auto => Some(Loader::Transformers),
            Self::Unsloth => Some(Loader::Unsloth),
            Self::Keys(keys) if keys.unsloth.is_some() => Some(Loader::Unsloth),
            Self::Keys(keys) => (keys.trl.is_some() || keys.auto.is_some()).then_some(Loader::Transformers),
            Self::Native => None,
        }
    }
}

/// What runs the trials, by keys: a program that is run once per trial, reads one JSON object with the parameters and prints JSON
/// lines; TRL or unsloth in a certain Python; or the choice between TRL and the built-in engine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackendKeys {
    /// Program and arguments, such as `[python3, train.py]`.
    pub command: Option<Vec<String>>,
    /// Folder that the command runs in; default: the folder of this file.
    pub folder: Option<PathBuf>,
    /// Environment variables that are set for the command.
    #[schemars(schema_with = "super::env::schema")]
    pub env: BTreeMap<String, String>,
    /// Trials train with TRL.
    pub trl: Option<TrlKeys>,
    /// Trials train with TRL on models that unsloth loads.
    pub unsloth: Option<TrlKeys>,
    /// Trials train in the built-in engine or with TRL: a search says which one it takes, and why.
    pub auto: Option<TrlKeys>,
}

/// Settings of the Python that trains with TRL or unsloth.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrlKeys {
    /// The interpreter that has them, such as `.venv/bin/python`, relative to this file; default: that of the active environment.
    pub python: Option<PathBuf>,
}

name_or_map!(
    ObjectiveEntry,
    "a metric's name, or {metric: .., direction: .., reference: .., known_after: ..}",
    |name| Some(ObjectiveEntry::named(name)),
    ObjectiveEntry,
    "Objective",
    |details: ObjectiveDetails| {
        "anyOf": [{"type": "string", "enum": RECIPE_METRICS}, {"type": "string"}, details]
    }
);

name_or_map!(
    SamplerEntry,
    &format!(
        "one of {}, or {{kind: .., options: {{..}}}}",
        SamplerKind::ALL
            .iter()
            .map(|kind| kind.name())
            .collect::<Vec<_>>()
            .join(", ")
    ),
    |name| {
        let (kind, options) = (SamplerKind::from_name(name)?, BTreeMap::new());
        Some(SamplerEntry(SamplerDetails { kind, options }))
    },
    SamplerEntry,
    "Sampler",
    |kind: SamplerKind, details: SamplerDetails| {"anyOf": [kind, details], "default": "auto"}
);

name_or_map!(
    BackendEntry,
    "native, trl, unsloth, auto, {trl: {python: ..}}, {unsloth: {python: ..}}, {auto: {python: ..}}, or {command: [program, argument, ..]}",
    |name| match name {
        "native" => Some(BackendEntry::Native),
        "trl" => Some(BackendEntry::Trl),
        "unsloth" => Some(BackendEntry::Unsloth),
        "auto" => Some(BackendEntry::Auto),
        _ => None,
    },
    BackendEntry::Keys,
    "Backend",
    |keys: BackendKeys| {
        "anyOf": [
            {"enum": ["native", "trl", "unsloth", "auto"]},
            {"allOf": [keys, {"anyOf": [
                {"required": ["command"], "not": {"anyOf": [
                    {"required": ["trl"]}, {"required": ["unsloth"]}, {"required": ["auto"]},
                ]}},
                {"required": ["trl"], "maxProperties": 1},
                {"required": ["unsloth"], "maxProperties": 1},
                {"required": ["auto"], "maxProperties": 1},
            ]}]},
        ],
        "default": "native",
    }
);
