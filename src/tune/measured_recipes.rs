//! Measurements of earlier trials, by the settings that decide them: the next trial measures only what is not known.
//!
//! Throughput and memory follow from a recipe's cost key, the loss from its loss key ([`Recipe::cost_key`],
//! [`Recipe::loss_key`]). A trial whose cost key has been measured skips the profile phase, one whose loss key has been
//! trained skips the training phase, and takes the values over; where both are known it need not run at all. What plain
//! tensor ops cost says nothing about own kernels, so that costs are kept for each form of the ops; the loss is the same.
//!
//! What is kept here is which trial measured what. The values lie in the database, with the trial.

use std::collections::BTreeMap;

use super::decision::Decision;
use super::measurement::{Measurement, Taken};
use crate::worker::{SERVE_S, Task};
use peft_tune_core::objective::{LOSS, SERVE_MS_PER_TOKEN, THROUGHPUT};
use peft_tune_core::recipe::{Recipe, RecipeKey};
use peft_tune_core::study::{FailReason, Metrics, Phase, Trial, TrialNumber, TrialPlan, TrialState, bound_of};
use peft_tune_kernels::Kernels;

/// Key of what decides a cost.
type CostKey = (RecipeKey, Kernels);

/// Measurements of recipes by key.
#[derive(Debug, Default)]
pub(super) struct MeasuredRecipes {
    /// Whether the time of a served token is a part of a cost.
    serves: bool,
    costs: BTreeMap<CostKey, TrialNumber>,
    losses: BTreeMap<RecipeKey, TrialNumber>,
    /// Losses that a training which was stopped cannot have fallen below.
    loss_bounds: BTreeMap<RecipeKey, f64>,
    /// Failures of what decides a cost: out of memory, or not to be served.
    failed_costs: BTreeMap<CostKey, (TrialNumber, FailReason)>,
    diverged: BTreeMap<RecipeKey, (TrialNumber, FailReason)>,
}

impl MeasuredRecipes {
    /// Knowledge of nothing yet, in a study whose trials do this.
    pub(super) fn of(plan: &TrialPlan) -> Self {
        Self {
            serves: plan.measure.as_ref().is_some_and(|measure| measure.serve.is_some()),
            ..Self::default()
        }
    }

    /// Keeps what a finished trial measured in a form of the ops. The first measurement of a key stays, so that what is
    /// inherited does not depend on the order in which later trials end.
    pub(super) fn learn(&mut self, trial: &Trial, recipe: &Recipe, kernels: Kernels) {
        if let TrialState::Failed { reason, metrics } = &trial.state {
            let failure = || (trial.number, reason.clone());
            if self.fails_cost(reason, metrics) {
                let key = (recipe.cost_key(), kernels);
                self.failed_costs.entry(key).or_insert_with(failure);
            } else if let FailReason::Diverged { .. } = reason {
                self.diverged.entry(recipe.loss_key()).or_insert_with(failure);
            }
        }
        let Some(metrics) = trial.state.metrics() else { return };
        if self.has_cost(metrics) {
            self.costs.entry((recipe.cost_key(), kernels)).or_insert(trial.number);
        }
        match &trial.state {
            TrialState::Complete { .. } if metrics.value(LOSS).is_some() => {
                self.losses.entry(recipe.loss_key()).or_insert(trial.number);
            }
            TrialState::Pruned { .. } => {
                if let Some(bound) = metrics.value(&bound_of(LOSS)) {
                    let highest = self.loss_bounds.entry(recipe.loss_key()).or_insert(bound);
                    *highest = highest.max(bound);
                }
            }
            _ => {}
        }
    }

    /// Whether all of a cost was measured.
    fn has_cost(&self, metrics: &Metrics) -> bool {
        let has = |name: &str| metrics.value(name).is_some();
        has(THROUGHPUT) && (!self.serves || has(SERVE_MS_PER_TOKEN))
    }

    /// Whether a failure is that of all recipes of one cost: what they take of memory, or that they cannot be served.
    fn fails_cost(&self, reason: &FailReason, metrics: &Metrics) -> bool {
        let has = |name: &str| metrics.value(name).is_some();
        let cannot_be_served = self.serves && has(SERVE_S) && !has(SERVE_MS_PER_TOKEN);
        match reason {
            FailReason::OutOfMemory { phase, .. } => cannot_be_served || *phase != Phase::Evaluate,
            FailReason::Invalid { .. } => cannot_be_served,
            _ => false,
        }
    }

    /// Keeps that a trial under way has measured its cost in a form of the ops.
    pub(super) fn learn_cost(&mut self, number: TrialNumber, recipe: &Recipe, kernels: Kernels) {
        self.costs.entry((recipe.cost_key(), kernels)).or_insert(number);
    }

    /// Forgets the cost that a trial under way has measured, of which nothing was kept.
    pub(super) fn forget(&mut self, number: TrialNumber) {
        self.costs.retain(|_, source| *source != number);
    }

    /// The loss that `recipe` cannot fall below, from a training of the same loss key that was stopped.
    pub(super) fn loss_bound(&self, recipe: &Recipe) -> Option<f64> {
        self.loss_bounds.get(&recipe.loss_key()).copied()
    }

    /// The decision on what a trial of `recipe` has to run of `plan` in a form of the ops.
    pub(super) fn decide(&self, recipe: &Recipe, plan: &TrialPlan, kernels: Kernels) -> Decision {
        let cost_key = (recipe.cost_key(), kernels);
        let failures = [
            (Measurement::Cost, self.failed_costs.get(&cost_key)),
            (
                Measurement::Loss,
                self.diverged.get(&recipe.loss_key()).filter(|_| plan.train.is_some()),
            ),
        ];
        for (part, failure) in failures {
            if let Some((source, reason)) = failure {
                let (source, reason) = (*source, reason.clone());
                return Decision::Fails { part, source, reason };
            }
        }
        let (mut plan, mut taken) = (plan.clone(), Vec::new());
        if let Some(source) = self.costs.get(&cost_key).filter(|_| plan.measure.is_some()) {
            plan.measure = None;
            let (part, source) = (Measurement::Cost, *source);
            taken.push(Taken { part, source });
        }
        if let Some(source) = self.losses.get(&recipe.loss_key()).filter(|_| plan.train.is_some()) {
            plan.train = None;
            let (part, source) = (Measurement::Loss, *source);
            taken.push(Taken { part, source });
        }
        if plan.measure.is_none() && plan.train.is_none() && !taken.is_empty() {
            return Decision::Known { taken };
        }
        let recipe = Box::new(recipe.clone());
        let task = Task::Recipe { recipe, plan };
        Decision::Run { task, taken }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{Checkpointing, DataSettings, TrainingLength};
    use peft_tune_core::study::{AccuracyPlan, MeasurePlan, ServeMode, ServePlan, TrainPlan};

    const FUSED: Kernels = Kernels::Fused;

    fn recipe(change: impl FnOnce(&mut Recipe)) -> Recipe {
        let data = DataSettings {
            train: "train.jsonl".into(),
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
                serve: None,
            }),
            train: Some(TrainPlan {
                length: TrainingLength::Steps(5),
                evaluations: 1,
                evaluation_rows: None,
                accuracy: AccuracyPlan::default(),
                seed_offset: 0,
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

    fn of(part: Measurement, source: u64) -> Taken {
        let source = TrialNumber(source);
        Taken { part, source }
    }

    fn known() -> MeasuredRecipes {
        let mut known = MeasuredRecipes::default();
        let measured = [("throughput", 100.0), ("peak_memory", 7.0), ("loss", 2.0)].into();
        known.learn(&complete(4, measured), &recipe(|_| ()), FUSED);
        known
    }

    #[test]
    fn another_learning_rate_inherits_the_cost_and_trains() {
        let decision = known().decide(&recipe(|recipe| recipe.optimizer.learning_rate = 1.0), &plan(), FUSED);
        let Decision::Run {
            task: Task::Recipe { plan: rest, .. },
            taken,
        } = decision
        else {
            panic!("{decision:?}")
        };
        assert_eq!((rest.measure, rest.train), (None, plan().train));
        assert_eq!(taken, [of(Measurement::Cost, 4)]);
    }

    #[test]
    fn what_plain_ops_cost_is_not_taken_for_what_own_kernels_cost() {
        let mut known = known();
        let Decision::Run {
            task: Task::Recipe { plan: rest, .. },
            taken,
        } = known.decide(&recipe(|_| ()), &plan(), Kernels::Reference)
        else {
            panic!("its cost is not known")
        };
        assert_eq!((rest.measure, rest.train), (plan().measure, None));
        assert_eq!(taken, [of(Measurement::Loss, 4)]);
        let slower = [("throughput", 10.0), ("peak_memory", 9.0), ("loss", 2.0)].into();
        known.learn(&complete(5, slower), &recipe(|_| ()), Kernels::Reference);
        let source = |kernels| match known.decide(&recipe(|_| ()), &plan(), kernels) {
            Decision::Known { taken } => taken[0].source,
            other => panic!("{other:?}"),
        };
        assert_eq!(source(Kernels::Reference), TrialNumber(5));
        assert_eq!(source(FUSED), TrialNumber(4));
    }

    #[test]
    fn checkpointing_inherits_the_loss_and_is_profiled() {
        let decision = known().decide(
            &recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full),
            &plan(),
            FUSED,
        );
        let Decision::Run {
            task: Task::Recipe { plan: rest, .. },
            taken,
        } = decision
        else {
            panic!("{decision:?}")
        };
        assert_eq!((rest.measure, rest.train), (plan().measure, None));
        assert_eq!(taken, [of(Measurement::Loss, 4)]);
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
        let taken = vec![of(Measurement::Cost, 5), of(Measurement::Loss, 6)];
        assert_eq!(known.decide(&both, &plan(), FUSED), Decision::Known { taken });
    }

    #[test]
    fn a_cost_is_known_once_it_is_measured_and_forgotten_with_its_attempt() {
        let mut known = MeasuredRecipes::default();
        known.learn_cost(TrialNumber(3), &recipe(|_| ()), FUSED);
        let other_rate = recipe(|recipe| recipe.optimizer.learning_rate = 1.0);
        let taken = |known: &MeasuredRecipes| match known.decide(&other_rate, &plan(), FUSED) {
            Decision::Run { taken, .. } => taken,
            decision => panic!("{decision:?}"),
        };
        assert_eq!(taken(&known), [of(Measurement::Cost, 3)]);
        known.forget(TrialNumber(3));
        assert_eq!(taken(&known), []);
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
        let mut known = MeasuredRecipes::default();
        known.learn(
            &Trial {
                number: TrialNumber(1),
                params: Default::default(),
                state,
            },
            &recipe(|_| ()),
            FUSED,
        );
        let decision = known.decide(&recipe(|recipe| recipe.optimizer.learning_rate = 1.0), &plan(), FUSED);
        assert_eq!(
            decision,
            Decision::Fails {
                part: Measurement::Cost,
                source: TrialNumber(1),
                reason
            }
        );
        let smaller = recipe(|recipe| recipe.batch.micro_batch = 1);
        assert!(matches!(known.decide(&smaller, &plan(), FUSED), Decision::Run { .. }));
    }

    #[test]
    fn a_cost_is_known_only_with_the_time_of_serving_where_that_is_asked_for() {
        let serve = ServePlan {
            mode: ServeMode::Beside,
            batch: 1,
            context: None,
            new_tokens: 4,
        };
        let mut plan = plan();
        plan.measure = plan.measure.map(|measure| MeasurePlan {
            serve: Some(serve),
            ..measure
        });
        let other_rate = recipe(|recipe| recipe.optimizer.learning_rate = 1.0);
        let learnt = |reason: FailReason, metrics: Metrics| {
            let mut known = MeasuredRecipes::of(&plan);
            let state = TrialState::Failed { reason, metrics };
            let (number, params) = (TrialNumber(2), Default::default());
            known.learn(&Trial { number, params, state }, &recipe(|_| ()), FUSED);
            known.decide(&other_rate, &plan, FUSED)
        };
        let diverged = || FailReason::Diverged {
            at_step: 3,
            loss: None,
            cause: None,
        };
        let taken = |decision| match decision {
            Decision::Run { taken, .. } => taken,
            other => panic!("{other:?}"),
        };
        assert_eq!(taken(learnt(diverged(), [("throughput", 9.0)].into())), []);
        let whole: Metrics = [("throughput", 9.0), ("serve_ms_per_token", 2.0)].into();
        assert_eq!(taken(learnt(diverged(), whole)), [of(Measurement::Cost, 2)]);
        let message = || "3 adapters cannot be served together".to_owned();
        let reason = || FailReason::Invalid { message: message() };
        let fails = Decision::Fails {
            part: Measurement::Cost,
            source: TrialNumber(2),
            reason: reason(),
        };
        assert_eq!(learnt(reason(), [("serve_s", 0.1)].into()), fails);
        assert_eq!(
            taken(learnt(reason(), [("load_s", 0.1)].into())),
            [],
            "the data may be mended"
        );
    }

    #[test]
    fn a_stopped_training_leaves_its_cost_and_a_bound_on_its_loss() {
        let mut known = MeasuredRecipes::default();
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
        let Decision::Run { taken, .. } = known.decide(&faster, &plan(), FUSED) else {
            panic!("its loss is not known")
        };
        assert_eq!(taken, [of(Measurement::Cost, 2)]);
    }

    #[test]
    fn what_diverged_is_not_trained_again_with_checkpointing() {
        let reason = FailReason::Diverged {
            at_step: 3,
            loss: None,
            cause: None,
        };
        let state = TrialState::Failed {
            reason: reason.clone(),
            metrics: [("throughput", 100.0)].into(),
        };
        let mut known = MeasuredRecipes::default();
        let params = Default::default();
        let number = TrialNumber(1);
        known.learn(&Trial { number, params, state }, &recipe(|_| ()), FUSED);
        let checkpointed = recipe(|recipe| recipe.gradient_checkpointing = Checkpointing::Full);
        assert_eq!(
            known.decide(&checkpointed, &plan(), FUSED),
            Decision::Fails {
                part: Measurement::Loss,
                source: number,
                reason
            }
        );
    }
}
