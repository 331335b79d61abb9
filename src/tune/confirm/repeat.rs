//! Kinds of runs that confirm a trial: their tasks, and what they tell.

use crate::space::Study;
use crate::tune::whole_task::whole_task;
use crate::worker::Task;
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER};
use peft_tune_core::recipe::TrainingLength;
use peft_tune_core::study::{AccuracyPlan, MeasurePlan, Metrics, TrainPlan, Trial, TrialPlan};
use peft_tune_search::{EvaluatedLoss, LossRise};

/// Evaluations of a longer training, at the least, where the search is to find how long one should be.
const LEAST_EVALUATIONS: u64 = 5;

/// A kind of run that confirms a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The profile phase, or the whole of a command.
    Cost,
    /// The training phase, with this added to the seed.
    Loss { seed_offset: u64 },
    /// The training phase, for so many tokens.
    Longer { tokens: u64 },
}

/// Kinds of runs in the order in which a confirmation makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    LongerTrainings,
    OtherSeeds,
    Costs,
}

impl Repeat {
    /// The stage of a confirmation in which the run is made.
    pub(super) fn stage(self) -> Stage {
        match self {
            Self::Longer { .. } => Stage::LongerTrainings,
            Self::Loss { .. } => Stage::OtherSeeds,
            Self::Cost => Stage::Costs,
        }
    }

    /// Metrics that a run measured, under the names that tell its kind apart, with what its evaluations say.
    pub(super) fn told(self, mut metrics: Metrics, evaluations: &[EvaluatedLoss]) -> Metrics {
        if let (Self::Longer { tokens }, Some(loss)) = (self, metrics.value(LOSS)) {
            metrics.retain(|name| name != LOSS);
            metrics.insert(LOSS_LONGER, loss);
            metrics.insert(LONGER_TOKENS, tokens as f64);
            if let Some(rise) = LossRise::of(evaluations) {
                for (name, value) in LossRise::metrics(Some(rise)) {
                    metrics.insert(name, value);
                }
            }
        }
        metrics
    }
}

/// The task of a repeat: a longer profile phase of so many steps, a training with another seed, or a whole command with
/// another seed.
pub(super) fn task_of_repeat(study: &Study, trial: &Trial, count: u64, repeat: Repeat, steps: u64) -> Option<Task> {
    Some(match whole_task(study, &trial.params).ok()? {
        Task::Recipe { recipe, plan: whole } => {
            let warmup = whole.measure.as_ref().map(|measure| measure.max_warmup_steps);
            let evaluations = match study.finds_length {
                true => LEAST_EVALUATIONS,
                false => 0,
            };
            let plan = match repeat {
                Repeat::Cost => TrialPlan {
                    measure: Some(MeasurePlan {
                        steps,
                        max_warmup_steps: warmup.unwrap_or(0),
                        serve: None,
                    }),
                    train: None,
                },
                Repeat::Loss { seed_offset } => trained(TrainPlan {
                    seed_offset,
                    ..whole.train?
                }),
                Repeat::Longer { tokens } => trained(TrainPlan {
                    length: TrainingLength::Tokens(tokens),
                    evaluations: evaluations.max(whole.train.as_ref()?.evaluations),
                    ..whole.train?
                }),
            };
            Task::Recipe { recipe, plan }
        }
        Task::Params { params, seed, steps } => Task::Params {
            params,
            seed: seed.wrapping_add(count),
            steps,
        },
    })
}

fn trained(plan: TrainPlan) -> TrialPlan {
    TrialPlan {
        measure: None,
        train: Some(TrainPlan {
            accuracy: AccuracyPlan::default(),
            ..plan
        }),
    }
}
