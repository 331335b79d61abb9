//! What is exported, and what came of it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::step_counts::StepCounts;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{DataFormat, LossOn, Recipe, TrainedRows};
use peft_tune_core::study::{Metrics, TrialNumber};

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// A recipe with what is known about it; all but the recipe ends up in comments.
#[derive(Clone, Copy, Debug)]
pub struct ExportInput<'a> {
    pub recipe: &'a Recipe,
    pub study: &'a str,
    pub trial: TrialNumber,
    pub metrics: &'a Metrics,
    /// Sentences that say why this trial was chosen.
    pub reasons: &'a [String],
    /// What else is known of the model and the data.
    pub known: Known<'a>,
}

/// Facts beside the recipe, each of which makes an export more exact.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// The model's dimensions. torchtune, which reads no `config.json`, cannot do without.
    pub architecture: Option<&'a Architecture>,
    /// The folder with the model's files on this machine.
    pub model_folder: Option<&'a Path>,
    /// What the data were recognised as, where the recipe says `auto`.
    pub data_format: Option<DataFormat>,
    /// Rows that are trained on, which turn epochs into steps.
    pub trained: Option<TrainedRows>,
    /// How the chat template tells what is learnt; `None` where nobody looked, or it does not and cannot be made to.
    pub marks: Option<&'a AnswerMarks>,
    /// The token with which the chat template ends answers, where it is another than the end-of-text token.
    pub turn_end: Option<&'a str>,
    /// The folder with the rows as token ids, for a tool that loads one (absolute).
    pub saved_rows: Option<&'a Path>,
}

/// The marks of answers (`{% generation %}`) in a chat template, without which some tools learn no answers alone.
#[derive(Clone, Debug)]
pub enum AnswerMarks {
    /// The template has them.
    Own,
    /// A template with marks that renders chats as the model's own does.
    Written(String),
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
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
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
    /// Layout of a row: as the recipe says, or as it was recognised.
    pub(crate) fn data_format(&self) -> DataFormat {
        match self.recipe.data.format {
            DataFormat::Auto => self.known.data_format.unwrap_or_default(),
            format => format,
        }
    }

    /// The chat template that has to be written for a tool which learns answers only where the template marks them.
    pub fn marked_template(&self) -> Option<&str> {
        let needs_marks = self.data_format() == DataFormat::Messages && self.recipe.data.loss_on == LossOn::Completions;
        match self.known.marks {
            Some(AnswerMarks::Written(text)) if needs_marks => Some(text),
            _ => None,
        }
    }

    /// Length and warm-up in steps, as far as they can be known.
    pub(crate) fn step_counts(&self) -> StepCounts {
        StepCounts::new(self.recipe, self.known.trained)
    }

    /// Folder that the tool writes into: a name of its own for each trial.
    pub(crate) fn output_folder(&self) -> String {
        format!("./{}-trial-{}", file_part(self.study), self.trial)
    }

    /// The comment at the top of a file.
    pub(crate) fn header(&self, usage: &str, warnings: &[Warning]) -> String {
        let lines = self.notes(usage, warnings);
        lines.iter().map(|line| format!("# {line}\n")).collect()
    }

    /// Lines that say how a file is used, where it comes from and what it cannot say.
    pub(crate) fn notes(&self, usage: &str, warnings: &[Warning]) -> Vec<String> {
        let mut lines = vec![usage.to_owned()];
        lines.extend(self.origin());
        let devices = self.recipe.batch.devices;
        if devices > 1 {
            lines.push(format!(
                "measured on {devices} devices; start as many processes: `torchrun --nproc_per_node {devices}` or `accelerate launch --num_processes {devices}`"
            ));
        }
        lines.extend(warnings.iter().map(|warning| format!("not as measured: {warning}")));
        lines.iter().map(|line| one_line(line)).collect()
    }

    /// Lines, without comment signs, that say where the recipe comes from and what it measured.
    pub fn origin(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "written by peft-tune {} from study {}, trial {}",
            env!("CARGO_PKG_VERSION"),
            one_line(self.study),
            self.trial
        )];
        let measured: Vec<_> = [
            ("throughput", " tokens/s", 0),
            ("peak_memory", " GiB", 2),
            ("loss", " nats per token", 4),
        ]
        .into_iter()
        .filter_map(|(name, suffix, decimals)| {
            let value = self.metrics.value(name)?;
            if name == "peak_memory" {
                let (unit, size) = match value >= GIB {
                    true => ("GiB", GIB),
                    false => ("MiB", GIB / 1024.0),
                };
                return Some(format!("peak memory {:.2} {unit}", value / size));
            }
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

/// A study's name as a part of a file name.
fn file_part(name: &str) -> String {
    let part: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    part.trim_start_matches('.').to_owned()
}
