//! How long a training runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{self, Count};

/// How long to train, and how often to look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingSettings {
    pub length: TrainingLength,
    /// Evaluates after every so many steps; only at the end where absent.
    #[serde(
        deserialize_with = "quantity::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Count>")]
    pub evaluate_every: Option<u64>,
    /// Evaluates on at most this many held-out rows.
    #[serde(
        deserialize_with = "quantity::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Count>")]
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
    Steps(
        #[serde(deserialize_with = "quantity::count")]
        #[schemars(with = "Count")]
        u64,
    ),
    /// Tokens that go through the model, padding not counted.
    Tokens(
        #[serde(deserialize_with = "quantity::count")]
        #[schemars(with = "Count")]
        u64,
    ),
    Epochs(f64),
}
