//! What one trial is to do: which phases, and how long.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The phases of one trial. Without a training phase a trial tells throughput and memory but no loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrialPlan {
    /// Measures throughput and peak memory over a few steps.
    pub measure: Option<MeasurePlan>,
    /// Trains and evaluates on the held-out set.
    pub train: Option<TrainPlan>,
}

/// The profile phase: steps until the warm-up is over, then measured steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurePlan {
    /// Measured steps, warm-up not counted.
    pub steps: u64,
    /// Steps after which the warm-up is taken as over even if step times still fall.
    pub max_warmup_steps: u64,
}

/// The training phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainPlan {
    /// Length in steps or tokens; tokens make settings of different batch sizes comparable.
    pub length: crate::recipe::TrainingLength,
    /// Evaluations on the way (at equal distances), the last one at the end.
    pub evaluations: u64,
    /// Held-out rows to evaluate on; all where absent.
    pub evaluation_rows: Option<usize>,
    /// Compares the trained model with the same on F32 base weights.
    // Left out where it is off, so that studies from before it are still the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accuracy_check: bool,
    /// Added to the recipe's seed for the adapter's first values, dropout and the order of rows. Which rows are held out stays
    /// as it is, so that losses compare.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seed_offset: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
