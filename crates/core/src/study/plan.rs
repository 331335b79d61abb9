//! Plan of one trial: which phases, and how long.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::serve::ServePlan;
use crate::recipe::{Recipe, TrainingData};
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
    /// Load under which the setting's model is served too, where that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<ServePlan>,
}

/// Steps of a warm-up that a profile phase within a training has at the least.
const LEAST_WARMUP: u64 = 2;

impl MeasurePlan {
    /// The plan of a profile phase that is the first steps of a training of `steps` steps, all before its first evaluation; `None`
    /// where it has no room for them.
    pub fn within(&self, train: &TrainPlan, steps: u64) -> Option<Self> {
        let before_evaluation = (steps / train.evaluations.max(1)).saturating_sub(1);
        let room = before_evaluation.checked_sub(self.steps)?;
        (room >= LEAST_WARMUP).then(|| Self {
            steps: self.steps,
            max_warmup_steps: self.max_warmup_steps.min(room),
            serve: self.serve,
        })
    }

    /// Micro-batches that a measured step of this recipe has where the training is not measured itself: two of those whose gradients
    /// are added up say what all of them take. All of them where they may differ, or where much of a step is not theirs.
    pub fn micro_batches(recipe: &Recipe) -> usize {
        let batch = &recipe.batch;
        let all = batch.micro_batches();
        let are_alike = matches!(recipe.data.train, TrainingData::Files(_)) && !batch.group_by_length;
        let is_theirs = recipe.adapter.is_some() && recipe.precision_schedule.is_none() && batch.devices == 1;
        if are_alike && is_theirs { all.min(2) } else { all }
    }
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
    /// Measurements of the trained model beside its loss.
    #[serde(flatten, default)]
    pub accuracy: AccuracyPlan,
    /// Offset of the recipe's seed for the adapter's first values, dropout and the order of rows. Which rows are held
    /// out stays as it is, so that losses compare.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seed_offset: u64,
}

/// Measurements of a trained model beside its loss. What is off is left out, so that studies from before it are still
/// the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccuracyPlan {
    /// Compares the trained model with the same on F32 base weights.
    #[serde(rename = "accuracy_check", default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// Trains the same recipe in F32 too, and compares the accuracies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fp32_training: bool,
    /// Evaluates rows that the training has nothing to do with (`data.retain`), before and behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retained_loss: bool,
    /// Compares the trained model's next-token distributions with those of the model before the training.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base_kl: bool,
    /// Answers that it generates, and what scores them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<Box<ScorePlan>>,
    /// Whether a trial fails where this cannot be measured: an objective or a constraint asks for it.
    #[serde(rename = "accuracy_required", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_required: bool,
}

impl AccuracyPlan {
    /// Whether nothing is measured beside the loss.
    pub fn is_off(&self) -> bool {
        let Self {
            check,
            fp32_training,
            retained_loss,
            base_kl,
            score,
            is_required: _,
        } = self;
        !check && !fp32_training && !retained_loss && !base_kl && score.is_none()
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::TrainingLength;

    #[test]
    fn a_profile_phase_is_part_of_a_training_that_has_room_before_its_first_evaluation() {
        let measure = MeasurePlan {
            steps: 5,
            max_warmup_steps: 10,
            serve: None,
        };
        let within = |steps, evaluations| {
            let train = TrainPlan {
                length: TrainingLength::Steps(steps),
                evaluations,
                evaluation_rows: None,
                accuracy: AccuracyPlan::default(),
                seed_offset: 0,
            };
            measure.within(&train, steps).map(|plan| plan.max_warmup_steps)
        };
        assert_eq!(
            (within(30, 1), within(30, 2), within(12, 1)),
            (Some(10), Some(9), Some(6))
        );
        assert_eq!(
            (within(8, 1), within(7, 1), within(16, 2), within(0, 0)),
            (Some(2), None, Some(2), None)
        );
    }
}
