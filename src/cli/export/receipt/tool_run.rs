//! The tool's steps: the user's Python, what it is asked, and what it answers.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cli::CliError;
use crate::cli::export::token_row::TokenRow;
use crate::cli::processes::printed::{last_words, output_within};
use crate::report::{duration, printable};
use crate::space::Seconds;
use crate::tools::Tool;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Trains with the tool, and writes its answer down.
const TRAINER: &str = include_str!("receipt.py");
/// Time that it takes at most: imports, the model, the rows and the steps.
const WITHIN: Seconds = Seconds(600.0);

/// Token ids of a row, and a label for each.
pub(super) type IdsAndLabels = (Vec<u32>, Vec<i64>);

/// Steps that a tool is asked for.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Asked<'a> {
    pub tool: &'static str,
    /// Folder of the exported files, by its whole path.
    pub folder: &'a Path,
    /// Folder for whatever the tool writes.
    pub scratch: &'a Path,
    pub steps: u64,
    /// Steps of the whole training, which the schedule is for.
    pub total_steps: u64,
    /// Rows that are read at most.
    pub rows: usize,
    pub device: &'a str,
    /// Folder of the adapter to start from; absent where every weight trains.
    pub adapter: Option<&'a Path>,
    #[serde(rename = "loop")]
    pub plain_loop: Option<PlainLoop>,
}

/// What a loop over PEFT's model trains with, since PEFT's file describes the adapter alone.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlainLoop {
    pub learning_rates: Vec<f64>,
    /// Rows of the micro-batches of each step, as ids and labels.
    pub steps: Vec<Vec<Vec<IdsAndLabels>>>,
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f64,
    pub max_grad_norm: Option<f64>,
    /// PyTorch's name of the type that the base is computed in.
    pub dtype: &'static str,
}

/// What the Python answers.
#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Answer {
    Trained(Box<ToolTraining>),
    Refused {
        #[serde(default)]
        version: Option<String>,
        message: String,
    },
    /// The Python has no such package.
    Missing,
    /// The package cannot be imported, or is too different a version.
    Unusable {
        #[serde(default)]
        version: Option<String>,
        message: String,
    },
}

/// A training as the tool had it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct ToolTraining {
    pub version: Option<String>,
    pub steps: Vec<ToolStep>,
    /// Numbers that are trained.
    pub parameters: Option<u64>,
    pub adapter: Option<ToolAdapter>,
    /// Weights of the adapter that the tool's has and the given one has not, or the other way round.
    pub strangers: Vec<String>,
    /// Types of the weights that are not trained.
    #[serde(default)]
    pub base_dtypes: Vec<String>,
    /// Token that rows are padded with, and the one that ends a text.
    #[serde(default)]
    pub pad: Option<u32>,
    #[serde(default)]
    pub end: Option<u32>,
    /// Share of their size by which scores of a packed row's second document change with the first one's tokens.
    pub leak: Option<f64>,
    /// Whether rows were left unread.
    pub rows_cut: bool,
    #[serde(default)]
    pub attention: Option<String>,
    pub peak_bytes: Option<f64>,
}

/// The adapter's settings in the tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ToolAdapter {
    pub rank: u64,
    pub alpha: f64,
    pub dropout: f64,
    pub rslora: bool,
    pub dora: bool,
}

/// One step of the tool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ToolStep {
    pub loss: Option<f64>,
    pub learning_rate: Option<f64>,
    pub grad_norm: Option<f64>,
    pub micro_batches: Vec<ToolMicroBatch>,
}

/// One micro-batch of the tool: its rows as ids and labels, and its part of the step's loss.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ToolMicroBatch {
    pub rows: Vec<IdsAndLabels>,
    pub loss: Option<f64>,
}

impl ToolStep {
    /// The rows of all micro-batches. The first token of a row is no target: nothing predicts it.
    pub(super) fn rows(&self) -> Vec<TokenRow> {
        let all = self.micro_batches.iter().flat_map(|one| &one.rows);
        let row = |(ids, labels): &IdsAndLabels| {
            let predicted = labels.iter().copied().skip(1);
            TokenRow {
                ids: ids.clone(),
                labels: std::iter::once(IGNORE).chain(predicted).collect(),
            }
        };
        all.map(row).collect()
    }
}

impl ToolMicroBatch {
    /// Tokens that count in the loss.
    pub(super) fn targets(&self) -> usize {
        let labels = self.rows.iter().flat_map(|(_, labels)| labels.iter().skip(1));
        labels.filter(|label| **label != IGNORE).count()
    }
}

/// A Python, and how long it may take.
pub(super) struct ToolPython<'a> {
    pub path: &'a Path,
    pub within: Option<Seconds>,
}

impl ToolPython<'_> {
    /// Has the tool train.
    ///
    /// # Errors
    /// What it refuses; that it is not installed, cannot be used, or took too long.
    pub(super) fn train(&self, asked: &Asked<'_>) -> Result<ToolTraining, CliError> {
        let files = [asked.scratch.join("asked.json"), asked.scratch.join("answer.json")];
        let text = serde_json::to_vec(asked).map_err(CliError::failed)?;
        std::fs::write(&files[0], text).map_err(|error| CliError::cannot_write(&files[0], &error, "TMPDIR"))?;
        let output = self.run(asked, &files)?;
        let (python, tool) = (self.path.display(), asked.tool);
        let answer = std::fs::read(&files[1]).ok();
        let answer = answer.and_then(|text| serde_json::from_slice::<Answer>(&text).ok());
        let named = |version: Option<String>| format!("{tool} {}", version.as_deref().unwrap_or("(of no version)"));
        match answer {
            Some(Answer::Trained(training)) => Ok(*training),
            Some(Answer::Refused { version, message }) => Err(CliError::ToolRefuses(format!(
                "{} in {python} does not train from {}: {}",
                named(version),
                asked.folder.display(),
                printable(&message)
            ))),
            Some(Answer::Missing) => Err(CliError::NotChecked(format!(
                "{tool} is not installed in {python}: install it there (`{python} -m pip install {tool}`), or name another Python \
                 with --python"
            ))),
            Some(Answer::Unusable { version, message }) => Err(CliError::NotChecked(format!(
                "{} in {python} cannot be used: {}",
                named(version),
                printable(&message)
            ))),
            None => Err(CliError::NotChecked(format!(
                "{python} ended with {} before {tool} had trained its steps; its last words: {}",
                output.status,
                last_words(&output.stderr).unwrap_or_else(|| "nothing".to_owned())
            ))),
        }
    }

    fn run(&self, asked: &Asked<'_>, files: &[PathBuf; 2]) -> Result<Output, CliError> {
        let within = self.within.unwrap_or(WITHIN).0;
        let limit = Duration::try_from_secs_f64(within).map_err(CliError::bad_input)?;
        let mut command = Command::new(self.path);
        command
            .args(["-B", "-c", TRAINER])
            .args(files)
            // A file in the current folder may have the name of a package.
            .env("PYTHONSAFEPATH", "1");
        if asked.device == "cpu" {
            command.env("CUDA_VISIBLE_DEVICES", "");
        }
        match output_within(command, limit) {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(CliError::NotChecked(format!(
                "{} did not train {} steps with {} within {}; give it longer with --receipt-within",
                self.path.display(),
                asked.steps,
                asked.tool,
                duration(within)
            ))),
            Err(error) => Err(CliError::NotChecked(format!(
                "cannot start {}: {error}; name a Python that has {} with --python",
                self.path.display(),
                asked.tool
            ))),
        }
    }
}

/// Whether a tool has no trainer of its own, and is trained by a plain loop.
pub(super) fn is_plain(tool: Tool) -> bool {
    tool == Tool::Peft
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_with_what_tools_may_not_know() {
        let text = r#"{"outcome": "trained", "version": "1.16.0", "parameters": 64, "adapter": null, "strangers": [], "leak": null,
            "rows_cut": false, "peak_bytes": 10, "steps": [{"loss": 2.5, "learning_rate": 0.001, "grad_norm": null,
            "micro_batches": [{"rows": [[[5, 6, 7], [5, 6, -100]]], "loss": 2.5}]}]}"#;
        let Answer::Trained(training) = serde_json::from_str(text).unwrap() else {
            panic!("it trained");
        };
        assert_eq!((training.parameters, training.steps[0].grad_norm), (Some(64), None));
        // What stands before the first token predicts nothing.
        assert_eq!(training.steps[0].rows()[0].labels, [IGNORE, 6, IGNORE]);
        assert_eq!(training.steps[0].micro_batches[0].targets(), 1);
        assert!(matches!(
            serde_json::from_str::<Answer>(r#"{"outcome": "missing"}"#).unwrap(),
            Answer::Missing
        ));
    }
}
