//! What earlier trials measured, by the settings that decide it: the next trial measures only what is not known.
//!
//! Throughput and memory follow from a recipe's cost key, the loss from its loss key ([`Recipe::cost_key`],
//! [`Recipe::loss_key`]). A trial whose cost key has been measured skips the profile phase, one whose loss key has been
//! trained skips the training phase, and takes the values over; where both are known it need not run at all.

use std::collections::BTreeMap;

use crate::objective::LOSS;
use crate::recipe::{Recipe, RecipeKey};
use crate::study::{FailReason, Metrics, Phase, Trial, TrialNumber, TrialPlan, TrialState};

/// Metrics of the training phase; all others are the profile phase's.
const LOSS_METRICS: [&str; 8] = [
    LOSS,
    "accuracy",
    "loss_fp32",
    "loss_kept_percent",
    "top1_agreement_percent",
    "train_steps",
    "train_tokens",
    "train_s",
];

/// A part of a trial that another trial measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inherited {
    pub(super) part: Part,
    pub(super) source: TrialNumber,
    pub(super) metrics: Metrics,
}

/// What a phase measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Cost,
    Loss,
}

impl Part {
    /// Name as the database has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Loss => "loss",
        }
    }
}

/// What to do with a trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// Run these phases; the rest is inherited.
    Run { plan: TrialPlan, inherited: Vec<Inherited> },
    /// Everything is known.
    Known { inherited: Vec<Inherited> },
    /// The settings that decide its memory ran out of it in another trial.
    CannotFit { source: TrialNumber, reason: FailReason },
}

/// Measurements by key.
#[derive(Debug, Default)]
pub(super) struct Known {
    costs: BTreeMap<RecipeKey, (TrialNumber, Metrics)>,
    losses: BTreeMap<RecipeKey, (TrialNumber, Metrics)>,
    out_of_memory: BTreeMap<RecipeKey, (TrialNumber, FailReason)>,
}

impl Known {
    /// Keeps what a finished trial measured. The first measurement of a key stays, so that what is inherited does not
    /// depend on the order in which later trials end.
    pub(super) fn learn(&mut self, trial: &Trial, recipe: &Recipe) {
        if let TrialState::Failed {
            reason: reason @ FailReason::OutOfMemory { phase, .. },
            ..
        } = &trial.state
            && *phase != Phase::Evaluate
        {
            self.out_of_memory
                .entry(recipe.cost_key())
                .or_insert_with(|| (trial.number, reason.clone()));
        }
        let TrialState::Complete { metrics } = &trial.state else {
            return;
        };
        let part = |of_loss: bool| {
            let mut part = Metrics::default();
            for (name, value) in metrics
                .iter()
                .filter(|(name, _)| LOSS_METRICS.contains(name) == of_loss)
            {
                part.insert(name, value);
            }
            part
        };
        if metrics.value(crate::objective::THROUGHPUT).is_some() {
            self.costs
                .entry(recipe.cost_key())
                .or_insert_with(|| (trial.number, part(false)));
        }
        if metrics.value(LOSS).is_some() {
            self.losses
                .entry(recipe.loss_key())
                .or_insert_with(|| (trial.number, part(true)));
        }
    }

    /// What a trial of `recipe` has to run of `plan`.
    pub(super) fn decide(&self, recipe: &Recipe, plan: &TrialPlan) -> Decision {
        if let Some((source, reason)) = self.out_of_memory.get(&recipe.cost_key()) {
            return Decision::CannotFit {
                source: *source,
                reason: reason.clone(),
            };
        }
        let (mut plan, mut inherited) = (plan.clone(), Vec::new());
        if let Some((source, metrics)) = self.costs.get(&recipe.cost_key()).filter(|_| plan.measure.is_some()) {
            plan.measure = None;
            inherited.push(Inherited {
                part: Part::Cost,
                source: *source,
                metrics: metrics.clone(),
            });
        }
        if let Some((source, metrics)) = self.losses.get(&recipe.loss_key()).filter(|_| plan.train.is_some()) {
            plan.train = None;
            inherited.push(Inherited {
                part: Part::Loss,
                source: *source,
                metrics: metrics.clone(),
            });
        }
        match plan.measure.is_none() && plan.train.is_none() && !inherited.is_empty() {
            true => Decision::Known { inherited },
            false => Decision::Run { plan, inherited },
        }
    }
}

/// The metrics of a trial with what it inherited; what it measured itself goes before.
pub(super) fn with_inherited(measured: &Metrics, inherited: &[Inherited]) -> Metrics {
    let mut metrics = Metrics::default();
    let parts = inherited.iter().map(|part| &part.metrics).chain([measured]);
    for (name, value) in parts.flat_map(Metrics::iter) {
        metrics.insert(name, value);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Checkpointing, DataSettings, TrainingLength};
    use crate::study::{MeasurePlan, TrainPlan};

    fn recipe(change: impl FnOnce(&mut Recipe)) -> Recipe {
        let data = DataSettings {
            train: vec!["train.jsonl".into()],
            ..Default::default()
        };
        let mut recipe = Recipe::new("model", data);
        change(&mut recipe);
        recipe
    }

    fn plan() -> TrialPlan {
        TrialPlan {
            measure: Some(MeasurePlan {
                steps: 3,
                max_warmup_steps: 3,
            }),
            train: Some(TrainPlan {
                length: TrainingLength::Steps(5),
                evaluations: 1,
                evaluation_rows: None,
                accuracy_check: false,
            }),
        }
    }

    fn complete(number: u64, metrics: Metrics) -> Trial {
        Trial {
            number: TrialNumber(number),
            params: Default::default(),
            state: TrialState::Complete { metrics },
        }
    }

    fn known() -> Known {
        let mut known = Known::default();
        let measured = [("throughput", 100.0), ("peak_memory", 7.0), ("loss", 2.0)].into();
        known.learn(&complete(4, measured), &recipe(|_| ()));
        known
    }

    #[test]
    fn another_learning_rate_inherits_the_cost_and_trains() {
        let decision = known().decide(&recipe(|recipe| recipe.optimizer.learning_rate = 1.0), &plan());
        let Decision::Run { plan: rest, inherited } = decision else {
            panic!("{decision:?}")
        };
        assert_eq!((rest.measure, rest.train), (None, plan().train));
        assert_eq!(
            inherited[0].metrics,
            [("throughput", 100.0), ("peak_memory", 7.0)].into()
        );
        assert_eq!((inherited[0].part, inherited[0].source), (Part::Cost, TrialNumber(4)));
    }

    #[test]
    fn checkpointing_inherits_the_loss_and_is_profiled() {
        let decision = known().decide(
            &recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full),
            &plan(),
        );
        let Decision::Run { plan: rest, inherited } = decision else {
            panic!("{decision:?}")
        };
        assert_eq!((rest.measure, rest.train), (plan().measure, None));
        assert_eq!(
            with_inherited(&[("throughput", 60.0)].into(), &inherited).value("loss"),
            Some(2.0)
        );
    }

    #[test]
    fn a_setting_whose_parts_are_known_need_not_run() {
        let mut known = known();
        let checkpointed = recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full);
        known.learn(
            &complete(5, [("throughput", 60.0), ("peak_memory", 3.0), ("loss", 2.0)].into()),
            &checkpointed,
        );
        let faster = recipe(|recipe| recipe.optimizer.learning_rate = 1.0);
        known.learn(
            &complete(6, [("throughput", 100.0), ("peak_memory", 7.0), ("loss", 1.5)].into()),
            &faster,
        );
        let both = recipe(|recipe| {
            recipe.gradient_checkpointing = Checkpointing::Full;
            recipe.optimizer.learning_rate = 1.0;
        });
        let Decision::Known { inherited } = known.decide(&both, &plan()) else {
            panic!("it would run")
        };
        let metrics = with_inherited(&Metrics::default(), &inherited);
        assert_eq!(
            metrics,
            [("throughput", 60.0), ("peak_memory", 3.0), ("loss", 1.5)].into()
        );
    }

    #[test]
    fn what_ran_out_of_memory_is_not_tried_with_another_learning_rate() {
        let reason = FailReason::OutOfMemory {
            phase: Phase::Profile,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: Some(9),
        };
        let state = TrialState::Failed {
            reason: reason.clone(),
            metrics: Metrics::default(),
        };
        let mut known = Known::default();
        known.learn(
            &Trial {
                number: TrialNumber(1),
                params: Default::default(),
                state,
            },
            &recipe(|_| ()),
        );
        let decision = known.decide(&recipe(|recipe| recipe.optimizer.learning_rate = 1.0), &plan());
        assert_eq!(
            decision,
            Decision::CannotFit {
                source: TrialNumber(1),
                reason
            }
        );
        let smaller = recipe(|recipe| recipe.batch.micro_batch = 1);
        assert!(matches!(known.decide(&smaller, &plan()), Decision::Run { .. }));
    }
}
