//! Facts of the data that a profiled training reads, and of the evaluations that it would make.

use std::time::Duration;

use super::{DataFacts, DataWaits, EvaluationCost, PreparingThread, StepFacts};
use crate::data::{BatchSource, PrefetchTimes};
use peft_tune_core::recipe::Recipe;

/// Facts of the data that a training reads.
pub(super) fn facts_of(recipe: &Recipe, source: &BatchSource) -> DataFacts {
    let steps = source.steps(recipe.training.length);
    DataFacts {
        rows: source.rows() as u64,
        mean_tokens_per_row: source.mean_tokens_per_row(),
        mean_documents_per_row: source.mean_documents_per_row(),
        largest_micro_batch_tokens: source.longest_micro_batch().tokens() as u64,
        target_share: source.target_tokens_per_epoch() as f64 / source.tokens_per_epoch().max(1) as f64,
        training_steps: steps,
        training_evaluations: evaluations(recipe, steps),
        waits: None,
    }
}

/// Waits that `reading` took of `elapsed`.
pub(super) fn waits_of(reading: &PrefetchTimes, prefetch_depth: usize, elapsed: Duration) -> DataWaits {
    let share = |seconds: f64| (seconds / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0);
    let steps = reading.steps.max(1) as f64;
    DataWaits {
        prefetch_depth,
        preparing_s: reading.preparing_s / steps,
        compute_waits: share(reading.compute_waits_s),
        data_waits: share(reading.data_waits_s),
        thread: reading.used.map(|used| PreparingThread {
            processor_s: used.processor_s / steps,
            read_bytes: used.read_bytes as f64 / steps,
        }),
    }
}

/// Evaluations of a training of so many steps: the one at the end included.
fn evaluations(recipe: &Recipe, steps: u64) -> u64 {
    match recipe.training.evaluate_every {
        Some(every) => steps.div_ceil(every.max(1)),
        None => 1,
    }
}

/// The evaluation with its share of a training's time.
pub(super) fn share_of_training(
    evaluation: EvaluationCost,
    steps: &StepFacts,
    recipe: &Recipe,
    source: &BatchSource,
) -> EvaluationCost {
    let count = source.steps(recipe.training.length);
    let evaluating = evaluations(recipe, count) as f64 * evaluation.seconds;
    let share = evaluating / (evaluating + count as f64 * steps.step_s).max(f64::MIN_POSITIVE);
    EvaluationCost { share, ..evaluation }
}
