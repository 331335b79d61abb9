//! A YAML file for another tool as it grows, with what it cannot say.

use serde_json::Value;

use super::course::{Course, Warmup};
use super::hf_trainer::schedule_name;
use super::target_yaml::TargetYaml;
use super::{ExportFormat, Warning};
use peft_tune_core::recipe::{
    AdapterBias, AdapterInit, AdapterSettings, DataSettings, Precision, Recipe, TrainingLength,
};

/// The file so far.
#[derive(Default)]
pub(super) struct Draft {
    pub yaml: TargetYaml,
    pub warnings: Vec<Warning>,
}

/// Adapter settings beyond rank, alpha, dropout and target modules that a tool can say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdapterWords {
    pub init: &'static [AdapterInit],
    pub bias: bool,
    pub patterns: bool,
    pub layers: bool,
    pub modules_to_save: bool,
    pub start: bool,
}

/// What a tool calls the length and the schedule of a training; `max_steps` and `warmup_steps` are the same in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct CourseWords {
    pub epochs: &'static str,
    pub schedule: &'static str,
    /// Key of a warm-up that is a share of the steps.
    pub warmup_share: &'static str,
}

impl Draft {
    pub fn warn(&mut self, field: &'static str, message: impl Into<String>) {
        self.warnings.push(Warning::new(field, message));
    }

    pub fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.yaml.key(key, value);
    }

    /// Writes how long the training of `recipe` runs, and its learning-rate schedule.
    pub fn course(&mut self, recipe: &Recipe, course: &Course, words: CourseWords) {
        match recipe.training.length {
            TrainingLength::Steps(steps) => self.key("max_steps", steps),
            TrainingLength::Epochs(epochs) => self.key(words.epochs, epochs),
            TrainingLength::Tokens(_) => {}
        }
        if let Some((steps, message)) = course.of_tokens() {
            self.key("max_steps", steps);
            self.warn("training.length", message);
        }
        self.key(words.schedule, schedule_name(&recipe.schedule));
        match course.warmup {
            Warmup::Steps(steps) => self.key("warmup_steps", steps),
            Warmup::Share(share) => self.key(words.warmup_share, share),
        }
    }

    /// Warns of each adapter setting that the tool has no words for.
    pub fn unsayable(&mut self, adapter: &AdapterSettings, words: AdapterWords, what_to_do: &str) {
        let init_is_said = adapter.init == AdapterInit::Kaiming || words.init.contains(&adapter.init);
        let unsayable = [
            (!init_is_said, "adapter.init"),
            (adapter.bias != AdapterBias::None && !words.bias, "adapter.bias"),
            (adapter.lora_bias, "adapter.lora_bias"),
            (
                !adapter.rank_pattern.is_empty() && !words.patterns,
                "adapter.rank_pattern",
            ),
            (
                !adapter.alpha_pattern.is_empty() && !words.patterns,
                "adapter.alpha_pattern",
            ),
            (
                adapter.layers_to_transform.is_some() && !words.layers,
                "adapter.layers_to_transform",
            ),
            (
                !adapter.modules_to_save.is_empty() && !words.modules_to_save,
                "adapter.modules_to_save",
            ),
            (adapter.adapter_init.is_some() && !words.start, "adapter.adapter_init"),
        ];
        for (_, field) in unsayable.into_iter().filter(|(given, _)| *given) {
            self.warn(field, what_to_do);
        }
    }

    /// `alpha` as a whole number, which some tools insist on; a rounded one is told.
    pub fn whole_alpha(&mut self, alpha: f64, format: ExportFormat) -> i64 {
        let whole = (alpha.round() as i64).max(1);
        if (whole as f64 - alpha).abs() > 1e-9 * alpha.abs() {
            let change = 100.0 * (whole as f64 / alpha - 1.0);
            self.warn(
                "adapter.alpha",
                format!("{format} takes whole numbers, so {alpha} became {whole} ({change:+.1}% scaling); adjust the learning rate"),
            );
        }
        whole
    }

    /// Warns where columns are renamed, for tools that rename none.
    pub fn no_renaming(&mut self, data: &DataSettings, format: ExportFormat) {
        if !data.columns.is_empty() {
            self.warn(
                "data.columns",
                format!("{format} renames no columns; rename them in the file"),
            );
        }
    }
}

/// A column of the file, under the name the file has for it.
pub(super) fn column(data: &DataSettings, name: &str) -> String {
    data.columns.get(name).cloned().unwrap_or_else(|| name.to_owned())
}

/// The `datasets` builder that reads a file.
pub(super) fn builder_of(path: &std::path::Path) -> &'static str {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv" | "tsv") => "csv",
        Some("parquet") => "parquet",
        Some("txt" | "text" | "md") => "text",
        _ => "json",
    }
}

/// Whether the base weights are quantized: bits, if so.
pub(super) fn quantized_bits(precision: Precision) -> Option<u8> {
    match precision {
        Precision::Int8 => Some(8),
        Precision::Nf4 | Precision::Nf4Double => Some(4),
        Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => None,
    }
}
