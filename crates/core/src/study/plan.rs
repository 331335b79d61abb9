//! What one trial is to do: which phases, and how long.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::score::ScorePlan;

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
    /// What is measured of the trained model beside its loss.
    #[serde(flatten, default)]
    pub accuracy: AccuracyPlan,
    /// Added to the recipe's seed for the adapter's first values, dropout and the order of rows. Which rows are held out stays
    /// as it is, so that losses compare.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seed_offset: u64,
}

/// What is measured of a trained model beside its loss. What is off is left out, so that studies from before it are still the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccuracyPlan {
    /// Compares the trained model with the same on F32 base weights.
    #[serde(rename = "accuracy_check", default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// Trains the same recipe in F32 too, and compares the accuracies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fp32_training: bool,
    /// Answers that it generates, and what scores them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<Box<ScorePlan>>,
    /// Whether a trial fails where this cannot be measured: an objective or a constraint asks for it.
    #[serde(rename = "accuracy_required", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_required: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
