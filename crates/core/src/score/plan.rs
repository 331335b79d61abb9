//! Answers of a trained model that are generated and scored.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ExactMatch;
use crate::objective::Direction;

/// Answers that a trained model generates to held-out prompts, and who scores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScorePlan {
    /// Held-out rows that are answered: the first that have a prompt and a whole answer.
    pub rows: usize,
    /// Most tokens of an answer.
    pub max_new_tokens: usize,
    /// Rows that are answered at once.
    pub batch: usize,
    /// Counts the answers that are the row's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<ExactMatch>,
    /// A program that scores them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<ScoreCommand>,
}

/// A program that reads prompts, references and answers and prints numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScoreCommand {
    /// Program and arguments; never empty.
    pub command: Vec<String>,
    /// Folder it runs in, absolute.
    pub folder: PathBuf,
    /// Environment variables that are set for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Seconds that it may take.
    pub timeout_s: f64,
    /// The metrics that it has to print, with what is better of each.
    pub metrics: BTreeMap<String, Direction>,
}
