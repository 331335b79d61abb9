//! What is exported, to what, and what came of it.

use std::fmt;
use std::path::PathBuf;

use crate::recipe::Recipe;
use crate::study::{Metrics, TrialNumber};

/// A tool whose file can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// `recipe.yaml`, for peft-tune itself: everything that was measured, nothing lost.
    Recipe,
    /// `adapter_config.json`, which PEFT's `LoraConfig.from_pretrained` reads.
    Peft,
    /// `trl_sft.yaml`, for `trl sft --config`.
    Trl,
}

impl ExportFormat {
    pub const ALL: [Self; 3] = [Self::Recipe, Self::Peft, Self::Trl];

    /// Name as the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recipe => "recipe",
            Self::Peft => "peft",
            Self::Trl => "trl",
        }
    }

    /// Name of the file that is written.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Recipe => "recipe.yaml",
            Self::Peft => "adapter_config.json",
            Self::Trl => "trl_sft.yaml",
        }
    }
}

impl fmt::Display for ExportFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A recipe with what is known about it; all but the recipe ends up in comments.
#[derive(Clone, Copy, Debug)]
pub struct ExportInput<'a> {
    pub recipe: &'a Recipe,
    pub study: &'a str,
    pub trial: TrialNumber,
    pub metrics: &'a Metrics,
    /// Sentences that say why this trial was chosen.
    pub reasons: &'a [String],
}

/// What an export wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    pub files: Vec<PathBuf>,
    pub warnings: Vec<Warning>,
}

/// Something that the target cannot say, or says differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Dotted recipe field that it is about.
    pub field: &'static str,
    /// A fragment that ends in what to do.
    pub message: String,
}

impl Warning {
    pub(super) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`: {}", self.field, self.message)
    }
}

impl ExportInput<'_> {
    /// Lines, without comment signs, that say where the recipe comes from and what it measured.
    pub(super) fn origin(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "written by peft-tune {} from study {}, trial {}",
            env!("CARGO_PKG_VERSION"),
            one_line(self.study),
            self.trial
        )];
        let measured: Vec<_> = [
            ("throughput", 1.0, " tokens/s", 0),
            ("peak_memory", (1u64 << 30) as f64, " GiB", 2),
            ("loss", 1.0, " nats per token", 4),
        ]
        .into_iter()
        .filter_map(|(name, unit, suffix, decimals)| {
            let value = self.metrics.value(name)? / unit;
            Some(format!("{} {value:.decimals$}{suffix}", name.replace('_', " ")))
        })
        .collect();
        if !measured.is_empty() {
            lines.push(format!("measured: {}", measured.join(", ")));
        }
        lines.extend(self.reasons.iter().map(|reason| one_line(reason)));
        lines
    }
}

/// A comment ends with its line, so nothing in it may begin another.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
