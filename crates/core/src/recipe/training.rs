//! How long a training runs, and how long the one is that a study is for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BatchSettings, EpochSteps, TrainedRows};
use crate::quantity::{self, Count};

/// How long to train, and how often to look. A study's length may be one that the search is to find ([`StudyLength`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    bound(deserialize = "L: Deserialize<'de> + From<TrainingLength>")
)]
#[schemars(
    rename = "TrainingSettings",
    bound = "L: JsonSchema + Serialize + From<TrainingLength>"
)]
pub struct TrainingSettings<L = TrainingLength> {
    pub length: L,
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

impl<L: From<TrainingLength>> Default for TrainingSettings<L> {
    fn default() -> Self {
        Self {
            length: TrainingLength::Epochs(1.0).into(),
            evaluate_every: None,
            evaluation_rows: None,
            shuffle: true,
            seed: 0,
        }
    }
}

impl TrainingSettings<StudyLength> {
    /// Settings of the recipe that the study is for; one epoch stands in for a length that is yet to be found.
    pub fn of_recipe(&self) -> TrainingSettings {
        let Self {
            length,
            evaluate_every,
            evaluation_rows,
            shuffle,
            seed,
        } = *self;
        TrainingSettings {
            length: match length {
                StudyLength::Auto => TrainingSettings::default().length,
                StudyLength::Steps(steps) => TrainingLength::Steps(steps),
                StudyLength::Tokens(tokens) => TrainingLength::Tokens(tokens),
                StudyLength::Epochs(epochs) => TrainingLength::Epochs(epochs),
            },
            evaluate_every,
            evaluation_rows,
            shuffle,
            seed,
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

impl TrainingLength {
    /// Tokens of a training of this length on these rows, in batches of `batch`.
    pub fn tokens(self, batch: &BatchSettings, trained: TrainedRows) -> u64 {
        let of_epoch = EpochSteps::new(trained.rows, batch);
        let steps = match self {
            Self::Tokens(tokens) => return tokens,
            Self::Epochs(epochs) => of_epoch.of_epochs(epochs),
            Self::Steps(steps) => steps,
        };
        (of_epoch.epochs_of(steps) * trained.tokens as f64) as u64
    }
}

/// Length of the training that a study is for: the search may be left to find it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TrainingLength")]
pub enum StudyLength {
    /// The search says after how many tokens more training no longer pays.
    Auto,
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

impl From<TrainingLength> for StudyLength {
    fn from(length: TrainingLength) -> Self {
        match length {
            TrainingLength::Steps(steps) => Self::Steps(steps),
            TrainingLength::Tokens(tokens) => Self::Tokens(tokens),
            TrainingLength::Epochs(epochs) => Self::Epochs(epochs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_compared_in_the_tokens_of_their_steps() {
        let mut batch = BatchSettings {
            micro_batch: 4,
            gradient_accumulation: 1,
            ..BatchSettings::default()
        };
        // Ten rows of 100 tokens are steps of 4, 4 and 2 rows.
        let trained = TrainedRows { rows: 10, tokens: 1000 };
        let counts = [
            TrainingLength::Steps(2),
            TrainingLength::Steps(6),
            TrainingLength::Epochs(2.0),
            TrainingLength::Epochs(0.3),
            TrainingLength::Tokens(7),
        ]
        .map(|length| length.tokens(&batch, trained));
        assert_eq!(counts, [800, 2000, 2000, 400, 7]);
        batch.micro_batch = 64;
        assert_eq!(TrainingLength::Steps(3).tokens(&batch, trained), 3000);
    }
}
