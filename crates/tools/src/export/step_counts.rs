//! How long a training runs and how it warms up, in steps: the only unit that every tool understands.

use peft_tune_core::recipe::{EpochSteps, Recipe, TrainedRows, TrainingLength};

/// The length of a training as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepCounts {
    pub length: TrainingLength,
    /// Optimizer steps of the whole training.
    pub steps: Option<u64>,
    /// How the rows of one pass through the data are dealt out, where their number is known.
    pub epoch: Option<EpochSteps>,
    pub warmup: Warmup,
}

/// The warm-up of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Warmup {
    Steps(u64),
    /// Share of all steps, where their number is not known.
    Share(f64),
}

impl StepCounts {
    /// The counts of `recipe`, whose data have `trained` rows.
    pub(crate) fn new(recipe: &Recipe, trained: Option<TrainedRows>) -> Self {
        let epoch_steps = trained.map(|trained| EpochSteps::new(rows_of(recipe, trained), &recipe.batch));
        let steps = match recipe.training.length {
            TrainingLength::Steps(steps) => Some(steps),
            TrainingLength::Epochs(epochs) => epoch_steps.map(|steps| steps.of_epochs(epochs)),
            TrainingLength::Tokens(tokens) => Some(steps_of_tokens(recipe, tokens, trained)),
        };
        let warmup = match steps {
            Some(steps) => Warmup::Steps(recipe.schedule.warmup_steps(steps)),
            None if recipe.schedule.warmup >= 1.0 => Warmup::Steps(recipe.schedule.warmup as u64),
            None if recipe.schedule.warmup > 0.0 => Warmup::Share(recipe.schedule.warmup),
            None => Warmup::Steps(0),
        };
        Self {
            length: recipe.training.length,
            steps,
            epoch: epoch_steps,
            warmup,
        }
    }

    /// Steps to write in place of a length in tokens, with what is to be said about it.
    pub(crate) fn of_tokens(&self) -> Option<(u64, String)> {
        let TrainingLength::Tokens(tokens) = self.length else {
            return None;
        };
        let steps = self.steps?;
        let how = match self.epoch {
            Some(_) => "at the mean length of the rows",
            None => "of full rows, more where rows are short",
        };
        Some((
            steps,
            format!("tokens cannot be counted; {tokens} tokens are {steps} steps {how}"),
        ))
    }
}

/// Rows of an epoch; packed ones are taken for full.
fn rows_of(recipe: &Recipe, trained: TrainedRows) -> u64 {
    match recipe.batch.packing {
        true => trained.tokens.div_ceil(recipe.batch.sequence_length.max(1) as u64),
        false => trained.rows,
    }
}

fn steps_of_tokens(recipe: &Recipe, tokens: u64, trained: Option<TrainedRows>) -> u64 {
    let batch = &recipe.batch;
    let tokens_per_row = match trained {
        Some(trained) if !batch.packing && trained.rows > 0 => trained.tokens as f64 / trained.rows as f64,
        _ => batch.sequence_length as f64,
    };
    let rows = (tokens as f64 / tokens_per_row.max(1.0)).ceil() as u64;
    // Data that nobody knows have no end that cuts a step short.
    let of_epoch = trained.map_or(u64::MAX, |trained| rows_of(recipe, trained));
    EpochSteps::new(of_epoch, batch).of_rows(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::DataSettings;

    fn recipe(length: TrainingLength, warmup: f64) -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.batch.micro_batch = 4;
        recipe.batch.gradient_accumulation = 2;
        recipe.batch.sequence_length = 100;
        recipe.training.length = length;
        recipe.schedule.warmup = warmup;
        recipe
    }

    const TRAINED: TrainedRows = TrainedRows {
        rows: 101,
        tokens: 5050,
    };

    #[test]
    fn epochs_become_steps_once_the_rows_are_known() {
        let recipe = recipe(TrainingLength::Epochs(2.0), 0.1);
        let unknown = StepCounts::new(&recipe, None);
        assert_eq!((unknown.steps, unknown.warmup), (None, Warmup::Share(0.1)));
        // 26 micro-batches, 13 steps an epoch.
        let known = StepCounts::new(&recipe, Some(TRAINED));
        assert_eq!(
            (known.steps, known.epoch.map(EpochSteps::per_epoch)),
            (Some(26), Some(13))
        );
        assert_eq!(known.warmup, Warmup::Steps(3));
    }

    #[test]
    fn tokens_become_steps_by_the_mean_row_or_the_longest() {
        let recipe = recipe(TrainingLength::Tokens(4000), 5.0);
        assert_eq!(StepCounts::new(&recipe, None).of_tokens().unwrap().0, 5);
        let known = StepCounts::new(&recipe, Some(TRAINED));
        assert_eq!(known.of_tokens().unwrap().0, 10);
        assert_eq!(known.warmup, Warmup::Steps(5));
    }

    #[test]
    fn packed_rows_are_counted_by_their_tokens() {
        let mut recipe = recipe(TrainingLength::Epochs(1.0), 0.0);
        recipe.batch.packing = true;
        // 51 full rows, 13 micro-batches, 7 steps.
        assert_eq!(StepCounts::new(&recipe, Some(TRAINED)).steps, Some(7));
    }
}
