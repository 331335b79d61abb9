//! The tool's steps: the user's Python, what it is asked, and what it answers.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde::{Deserialize, Serialize};

use crate::cli::CliError;
use crate::cli::export::token_row::TokenRow;
use crate::cli::export::tool_python::{Answer, ToolPython};
use crate::report::duration;
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
        let row = |(ids, labels): &IdsAndLabels| TokenRow::new(ids.clone(), labels.clone());
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

impl Asked<'_> {
    /// Has the tool of a Python train.
    ///
    /// # Errors
    /// What it refuses; that it is not installed, cannot be used, or took too long.
    pub(super) fn train(&self, python: &ToolPython<'_>, within: Option<Seconds>) -> Result<ToolTraining, CliError> {
        let files = [self.scratch.join("asked.json"), self.scratch.join("answer.json")];
        let text = serde_json::to_vec(self).map_err(CliError::failed)?;
        std::fs::write(&files[0], text).map_err(|error| CliError::cannot_write(&files[0], &error, "TMPDIR"))?;
        let output = self.run(python, within.unwrap_or(WITHIN), &files)?;
        let answer = std::fs::read(&files[1]).ok();
        match answer.and_then(|text| serde_json::from_slice::<Answer<ToolTraining>>(&text).ok()) {
            Some(answer) => python.done(answer, &format!("does not train from {}", self.folder.display())),
            None => Err(python.ended(&output, &format!("{} had trained its steps", self.tool))),
        }
    }

    fn run(&self, python: &ToolPython<'_>, within: Seconds, files: &[PathBuf; 2]) -> Result<Output, CliError> {
        let mut command = python.command();
        command.args(["-B", "-c", TRAINER]).args(files);
        if self.device == "cpu" {
            command.env("CUDA_VISIBLE_DEVICES", "");
        }
        python.output(command, within)?.ok_or_else(|| {
            CliError::NotChecked(format!(
                "{} did not train {} steps with {} within {}; give it longer with --receipt-within",
                python.path.display(),
                self.steps,
                self.tool,
                duration(within.0)
            ))
        })
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
        let Answer::<ToolTraining>::Done(training) = serde_json::from_str(text).unwrap() else {
            panic!("it trained");
        };
        assert_eq!((training.parameters, training.steps[0].grad_norm), (Some(64), None));
        // What stands before the first token predicts nothing.
        assert_eq!(training.steps[0].rows()[0].labels, [IGNORE, 6, IGNORE]);
        assert_eq!(training.steps[0].micro_batches[0].targets(), 1);
    }
}
