//! Data to train and evaluate on.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TrainingData;
use super::training_data::OneOrMany;
use crate::quantity::{self, Count};

/// Data to train and evaluate on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// Training file, or several that are read one after another (JSONL, JSON, CSV, Parquet or plain text). Or sets that
    /// are mixed: a list of `{file, weight}`, where the weights are shares of the rows that a training takes.
    pub train: TrainingData,
    /// Held-out data for the loss: file(s), or the fraction of the training rows to hold out (default 0.1).
    #[serde(default)]
    pub held_out: HeldOut,
    /// Cuts held-out rows to so many tokens instead of the sequence length. What is longer than a sequence is scored in
    /// windows of one, so settings of any length are compared on the same tokens. Default in a search: the longest
    /// sequence length of its space.
    #[serde(
        default,
        deserialize_with = "quantity::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Count>")]
    pub held_out_length: Option<usize>,
    /// Rows that the training has nothing to do with, as file(s): what a trial's training adds to their loss is the metric
    /// `retained_loss_increase`. Their format is recognised from their own columns. Nothing is trained on them.
    #[serde(
        default,
        with = "super::training_data::one_or_many",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(with = "OneOrMany")]
    pub retain: Vec<PathBuf>,
    /// Format of a row; `auto` recognises it from the columns.
    #[serde(default)]
    pub format: DataFormat,
    /// Renames columns: the name the format expects (`instruction`, `messages`, `text`, ...) to the file's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// Tokens that are training targets.
    #[serde(default)]
    pub loss_on: LossOn,
    /// Tokens that a chat template writes around texts and that are training targets.
    #[serde(default, skip_serializing_if = "TemplateTargets::is_all")]
    pub template_targets: TemplateTargets,
    /// Treatment of a row that is longer than the sequence length; running text is split in any case.
    #[serde(default, skip_serializing_if = "LongRows::is_cut")]
    pub long_rows: LongRows,
    /// Jinja chat template file that replaces the tokenizer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,
    /// Reads at most this many training rows.
    #[serde(
        default,
        deserialize_with = "quantity::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Count>")]
    pub max_rows: Option<usize>,
    /// Threads that tokenise rows, before the first step; the tokens are the same. Default: as many as the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizing_workers: Option<usize>,
}

/// Source of the held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "write a fraction such as 0.1, a file or a list of files")]
pub enum HeldOut {
    /// Fraction of the training rows, in (0, 1); which rows is decided by the recipe's seed.
    Fraction(f64),
    File(PathBuf),
    Files(Vec<PathBuf>),
}

impl HeldOut {
    /// The files; none where the rows are a part of those to train on.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Self::Fraction(_) => &[],
            Self::File(path) => std::slice::from_ref(path),
            Self::Files(paths) => paths,
        }
    }

    /// Rows of so many that are held out as a fraction of them: at least one and not all, and none of fewer than two. 0 where
    /// files have them.
    pub fn count_of(&self, rows: u64) -> u64 {
        match self {
            Self::Fraction(fraction) if rows >= 2 => ((rows as f64 * fraction).round() as u64).clamp(1, rows - 1),
            Self::Fraction(_) | Self::File(_) | Self::Files(_) => 0,
        }
    }
}

impl Default for HeldOut {
    fn default() -> Self {
        Self::Fraction(0.1)
    }
}

impl From<Vec<PathBuf>> for HeldOut {
    fn from(mut files: Vec<PathBuf>) -> Self {
        match files.len() {
            1 => Self::File(files.remove(0)),
            _ => Self::Files(files),
        }
    }
}

/// Layout of one training row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// Format that is recognised from the columns of the first row.
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
    /// `chosen` and `rejected`, and their `prompt` unless both begin with it: texts, or lists of messages.
    Preference,
    /// `prompt`, `completion` and `label`, which says whether the completion is good.
    UnpairedPreference,
}

impl DataFormat {
    /// Name in recipes and study files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Alpaca => "alpaca",
            Self::Sharegpt => "sharegpt",
            Self::Messages => "messages",
            Self::PromptCompletion => "prompt_completion",
            Self::Text => "text",
            Self::Tokenized => "tokenized",
            Self::Preference => "preference",
            Self::UnpairedPreference => "unpaired_preference",
        }
    }

    /// Whether rows say which answer is the better one, or whether one is good.
    pub const fn is_of_preferences(self) -> bool {
        matches!(self, Self::Preference | Self::UnpairedPreference)
    }
}

/// Tokens of a row that count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// The answers only, where the format tells prompt and answer apart; all tokens of `text` rows.
    #[default]
    Completions,
    /// Every token.
    All,
}

/// Tokens that a chat template writes around the texts of messages and that count in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateTargets {
    /// Tokens of an answer to the end of its turn with `loss_on: completions`, and everything with `loss_on: all`.
    #[default]
    All,
    /// The token that ends a turn, and neither roles nor the line break behind that token: as axolotl learns chats.
    StopTokens,
}

impl TemplateTargets {
    /// Whether everything that `loss_on` names counts, as where nothing is said.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// Treatment of a row that is longer than the sequence length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LongRows {
    /// The end of the row is cut away.
    #[default]
    Cut,
    /// The row is left out whole.
    Drop,
}

impl LongRows {
    /// Whether long rows are cut, as where nothing is said.
    pub fn is_cut(&self) -> bool {
        *self == Self::Cut
    }
}
