//! The key `score` as it is written.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::Seconds;
use peft_tune_core::objective::Direction;
use peft_tune_core::quantity::{self, PositiveCount};
use peft_tune_core::score::ExactMatch;

/// Answers that each trained model generates to held-out prompts, and what scores them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScoreEntry {
    /// Held-out rows that are answered: the first that have a prompt and a whole answer; default 64.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub rows: Option<NonZeroUsize>,
    /// Most tokens of an answer; default 64.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub max_new_tokens: Option<NonZeroUsize>,
    /// Rows that are answered at once; default 16.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub batch: Option<NonZeroUsize>,
    /// Counts the answers that are the row's own, as the metric `exact_match`; `{}` compares whole texts.
    pub exact_match: Option<ExactMatch>,
    /// Program and arguments, such as `[python3, score.py]`: it reads JSON lines with prompt, reference and answer, and prints a
    /// JSON object with numbers.
    pub command: Option<Vec<String>>,
    /// What the program prints, with what is better of it: `{f1: maximize}`.
    pub metrics: BTreeMap<String, Direction>,
    /// Longest time of the program; default 10m.
    pub timeout: Option<Seconds>,
    /// Folder that it runs in; default: the folder of this file.
    pub folder: Option<PathBuf>,
    /// Environment variables that are set for it.
    #[schemars(schema_with = "super::env::schema")]
    pub env: BTreeMap<String, String>,
}
