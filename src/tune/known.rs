//! What earlier trials measured, by the settings that decide it: the next trial measures only what is not known.
//!
//! Throughput and memory follow from a recipe's cost key, the loss from its loss key ([`Recipe::cost_key`],
//! [`Recipe::loss_key`]). A trial whose cost key has been measured skips the profile phase, one whose loss key has been
//! trained skips the training phase, and takes the values over; where both are known it need not run at all. What plain
//! tensor ops cost says nothing about own kernels, so that costs are kept for each form of the ops; the loss is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::objective::{LOSS, LOSS_BEFORE, THROUGHPUT};
use crate::recipe::{Recipe, RecipeKey};
use crate::study::{FailReason, Metrics, Phase, Trial, TrialNumber, TrialPlan, TrialState};
use crate::train::ops::Kernels;
use crate::worker::Task;

/// Metrics of the training phase; all others are the profile phase's.
const LOSS_METRICS: [&str; 9] = [
    LOSS,
    LOSS_BEFORE,
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

/// What a trial can take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What the profile phase measures.
    Cost,
    /// What the training phase measures.
    Loss,
    /// One metric of a command.
    Metric(String),
}

/// What to do with a trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// Run this; the rest is inherited.
    Run { task: Task, inherited: Vec<Inherited> },
    /// Everything is known.
    Known { inherited: Vec<Inherited> },
    /// The settings that decide this failed in another trial, and would again.
    Fails {
        part: Part,
        source: TrialNumber,
        reason: FailReason,
    },
}

/// What decides a cost.
type CostKey = (RecipeKey, Kernels);

/// Measurements of recipes by key.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The form of the ops that trials run in now.
    kernels: Kernels,
    costs: BTreeMap<CostKey, (TrialNumber, Metrics)>,
    losses: BTreeMap<RecipeKey, (TrialNumber, Metrics)>,
    /// What the loss cannot have fallen below, where its training was stopped.
    loss_bounds: BTreeMap<RecipeKey, f64>,
    out_of_memory: BTreeMap<CostKey, (TrialNumber, FailReason)>,
    diverged: BTreeMap<RecipeKey, (TrialNumber, FailReason)>,
    /// Names of metrics, each held once.
    names: BTreeSet<Arc<str>>,
}

impl Known {
    /// Trials run in this form of the ops from now on.
    pub(super) fn set_kernels(&mut self, kernels: Kernels) {
        self.kernels = kernels;
    }

    /// Keeps what a finished trial measured in a form of the ops. The first measurement of a key stays, so that what is
    /// inherited does not depend on the order in which later trials end.
    pub(super) fn learn(&mut self, trial: &Trial, recipe: &Recipe, kernels: Kernels) {
        if let TrialState::Failed { reason, .. } = &trial.state {
            let failure = || (trial.number, reason.clone());
            match reason {
                FailReason::OutOfMemory { phase, .. } if *phase != Phase::Evaluate => {
                    let key = (recipe.cost_key(), kernels);
                    self.out_of_memory.entry(key).or_insert_with(failure);
                }
                FailReason::Diverged { .. } => {
                    self.diverged.entry(recipe.loss_key()).or_insert_with(failure);
                }
                _ => {}
            }
        }
        let Some(metrics) = trial.state.metrics() else { return };
        if metrics.value(THROUGHPUT).is_some() {
            self.costs
                .entry((recipe.cost_key(), kernels))
                .or_insert_with(|| (trial.number, part_of(metrics, false, &mut self.names)));
        }
        match &trial.state {
            TrialState::Complete { .. } if metrics.value(LOSS).is_some() => {
                self.losses
                    .entry(recipe.loss_key())
                    .or_insert_with(|| (trial.number, part_of(metrics, true, &mut self.names)));
            }
            TrialState::Pruned { .. } => {
                if let Some(bound) = metrics.value(&at_least(LOSS)) {
                    let highest = self.loss_bounds.entry(recipe.loss_key()).or_insert(bound);
                    *highest = highest.max(bound);
                }
            }
            _ => {}
        }
    }

    /// What the loss of `recipe` cannot fall below, from a training of the same loss key that was stopped.
    pub(super) fn loss_bound(&self, recipe: &Recipe) -> Option<f64> {
        self.loss_bounds.get(&recipe.loss_key()).copied()
    }

    /// What a trial of `recipe` has to run of `plan`.
    pub(super) fn decide(&self, recipe: &Recipe, plan: &TrialPlan) -> Decision {
        let cost_key = (recipe.cost_key(), self.kernels);
        let failures = [
            (Part::Cost, self.out_of_memory.get(&cost_key)),
            (
                Part::Loss,
                self.diverged.get(&recipe.loss_key()).filter(|_| plan.train.is_some()),
            ),
        ];
        for (part, failure) in failures {
            if let Some((source, reason)) = failure {
                let (source, reason) = (*source, reason.clone());
                return Decision::Fails { part, source, reason };
            }
        }
        let (mut plan, mut inherited) = (plan.clone(), Vec::new());
        if let Some((source, metrics)) = self.costs.get(&cost_key).filter(|_| plan.measure.is_some()) {
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
        if plan.measure.is_none() && plan.train.is_none() && !inherited.is_empty() {
            return Decision::Known { inherited };
        }
        let recipe = Box::new(recipe.clone());
        let task = Task::Recipe { recipe, plan };
        Decision::Run { task, inherited }
    }
}

/// Name of the metric that a pruned trial's `metric` could not have fallen below (or risen above, if it is maximised).
pub(super) fn at_least(metric: &str) -> String {
    format!("{metric}_at_least")
}

/// Name of the metric that says where a pruned trial's `metric` would have ended.
pub(super) fn expected(metric: &str) -> String {
    format!("{metric}_expected")
}

/// Name of the metric that says how uncertain that is: its standard deviation.
pub(super) fn expected_deviation(metric: &str) -> String {
    format!("{metric}_expected_deviation")
}

/// The metrics of one phase.
fn part_of(metrics: &Metrics, of_loss: bool, names: &mut BTreeSet<Arc<str>>) -> Metrics {
    let mut part = Metrics::default();
    let of_the_stop = [at_least(LOSS), expected(LOSS), expected_deviation(LOSS)];
    for (name, value) in metrics
        .iter()
        .filter(|(name, _)| !of_the_stop.iter().any(|one| one == name))
    {
        if LOSS_METRICS.contains(&name) == of_loss {
            part.insert(name, value);
        }
    }
    part.share_names(names);
    part
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

    const FUSED: Kernels = Kernels::Fused;

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
        known.learn(&complete(4, measured), &recipe(|_| ()), FUSED);
        known
    }

    #[test]
    fn another_learning_rate_inherits_the_cost_and_trains() {
        let decision = known().decide(&recipe(|recipe| recipe.optimizer.learning_rate = 1.0), &plan());
        let Decision::Run {
            task: Task::Recipe { plan: rest, .. },
            inherited,
        } = decision
        else {
            panic!("{decision:?}")
        };
        assert_eq!((rest.measure, rest.train), (None, plan().train));
        assert_eq!(
            inherited[0].metrics,
            [("throughput", 100.0), ("peak_memory", 7.0)].into()
        );
        assert_eq!((&inherited[0].part, inherited[0].source), (&Part::Cost, TrialNumber(4)));
    }

    #[test]
    fn what_plain_ops_cost_is_not_taken_for_what_own_kernels_cost() {
        let mut known = known();
        known.set_kernels(Kernels::Reference);
        let Decision::Run {
            task: Task::Recipe { plan: rest, .. },
            inherited,
        } = known.decide(&recipe(|_| ()), &plan())
        else {
            panic!("its cost is not known")
        };
        assert_eq!((rest.measure, rest.train), (plan().measure, None));
        assert_eq!((&inherited[0].part, inherited.len()), (&Part::Loss, 1));
        let slower = [("throughput", 10.0), ("peak_memory", 9.0), ("loss", 2.0)].into();
        known.learn(&complete(5, slower), &recipe(|_| ()), Kernels::Reference);
        let source = |known: &Known| match known.decide(&recipe(|_| ()), &plan()) {
            Decision::Known { inherited } => inherited[0].source,
            other => panic!("{other:?}"),
        };
        assert_eq!(source(&known), TrialNumber(5));
        known.set_kernels(FUSED);
        assert_eq!(source(&known), TrialNumber(4));
    }

    #[test]
    fn checkpointing_inherits_the_loss_and_is_profiled() {
        let decision = known().decide(
            &recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full),
            &plan(),
        );
        let Decision::Run {
            task: Task::Recipe { plan: rest, .. },
            inherited,
        } = decision
        else {
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
            FUSED,
        );
        let faster = recipe(|recipe| recipe.optimizer.learning_rate = 1.0);
        known.learn(
            &complete(6, [("throughput", 100.0), ("peak_memory", 7.0), ("loss", 1.5)].into()),
            &faster,
            FUSED,
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
            FUSED,
        );
        let decision = known.decide(&recipe(|recipe| recipe.optimizer.learning_rate = 1.0), &plan());
        assert_eq!(
            decision,
            Decision::Fails {
                part: Part::Cost,
                source: TrialNumber(1),
                reason
            }
        );
        let smaller = recipe(|recipe| recipe.batch.micro_batch = 1);
        assert!(matches!(known.decide(&smaller, &plan()), Decision::Run { .. }));
    }

    #[test]
    fn a_stopped_training_leaves_its_cost_and_a_bound_on_its_loss() {
        let mut known = Known::default();
        let metrics: Metrics = [("throughput", 100.0), ("loss", 3.0), ("loss_at_least", 2.5)].into();
        let state = TrialState::Pruned {
            at_step: 7,
            rule: "dominance".to_owned(),
            metrics,
        };
        let params = Default::default();
        let number = TrialNumber(2);
        known.learn(&Trial { number, params, state }, &recipe(|_| ()), FUSED);
        let checkpointed = recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full);
        assert_eq!(known.loss_bound(&checkpointed), Some(2.5));
        let faster = recipe(|recipe| recipe.optimizer.learning_rate = 1.0);
        let Decision::Run { inherited, .. } = known.decide(&faster, &plan()) else {
            panic!("its loss is not known")
        };
        assert_eq!(inherited[0].metrics, [("throughput", 100.0)].into());
    }

    #[test]
    fn what_diverged_is_not_trained_again_with_checkpointing() {
        let reason = FailReason::Diverged { at_step: 3, loss: None };
        let state = TrialState::Failed {
            reason: reason.clone(),
            metrics: [("throughput", 100.0)].into(),
        };
        let mut known = Known::default();
        let params = Default::default();
        let number = TrialNumber(1);
        known.learn(&Trial { number, params, state }, &recipe(|_| ()), FUSED);
        let checkpointed = recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full);
        assert_eq!(
            known.decide(&checkpointed, &plan()),
            Decision::Fails {
                part: Part::Loss,
                source: number,
                reason
            }
        );
    }
}
