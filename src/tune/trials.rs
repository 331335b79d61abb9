//! Trials of a study as its search holds them: params and outcomes as far as samplers, rules and the front look at them, and
//! what they add up to.

use std::collections::{BTreeMap, BTreeSet};

use super::finished_trials::FinishedTrials;
use super::kept_metrics::KeptMetrics;
use super::propose::Proposed;
use crate::store::{InheritedValue, Store, StoreError, StudyId};
use peft_tune_core::space::StopRule;
use peft_tune_core::study::{Confirmations, Curve, Metrics, Params, Trial, TrialNumber, TrialState, with_confirmed};
use peft_tune_search::{Problem, hypervolume_history, stop_reason};

/// All trials of a study.
#[derive(Debug)]
pub(super) struct Trials {
    /// Trials by number, running ones included; of finished ones what [`KeptMetrics`] names.
    history: Vec<Trial>,
    kept: KeptMetrics,
    /// Curves that finished trials told on their way, for a pruner.
    curves: BTreeMap<TrialNumber, Curve>,
    /// The last step of the longest trial that was not stopped.
    longest: Option<u64>,
    /// Hypervolume that each trial was expected to add when it was proposed.
    expected_gains: BTreeMap<TrialNumber, f64>,
    /// Trials that took their loss over from another.
    variants: BTreeSet<TrialNumber>,
    /// Trials that took their cost over from another.
    inherits_cost: BTreeSet<TrialNumber>,
    finished_trials: FinishedTrials,
    /// Values that repeats confirmed in earlier runs of the study: they count where people are told how far the study
    /// is.
    confirmed: Confirmations,
}

impl Trials {
    /// Trials that earlier searches left, with all of their metrics, and what else is stored of them.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(super) async fn stored(
        mut history: Vec<Trial>,
        mut kept: KeptMetrics,
        problem: &Problem,
        store: &Store,
        id: StudyId,
    ) -> Result<Self, StoreError> {
        let inherited = store.inheritance().all(id).await?;
        let variants: BTreeSet<TrialNumber> = InheritedValue::variants(&inherited).into_keys().collect();
        let of_cost = inherited.iter().filter(|value| value.is_cost());
        let confirmed = store.repeats().confirmations(id).await?;
        let mut finished_trials = FinishedTrials::default();
        finished_trials.count(problem, &with_confirmed(&history, &confirmed));
        let is_variant = |trial: &&Trial| trial.state.is_finished() && variants.contains(&trial.number);
        finished_trials.count_variants(history.iter().filter(is_variant).count() as u64);
        history.iter_mut().for_each(|trial| kept.reduce(trial));
        let mut curves = store.reports().curves(id).await?;
        let complete = history.iter().filter(|trial| trial.state.name() == "complete");
        let longest = complete
            .filter_map(|trial| Some(curves.get(&trial.number)?.last_step()))
            .max();
        curves.retain(|_, _| kept.keeps_curves());
        curves.values_mut().for_each(|curve| kept.reduce_curve(curve));
        Ok(Self {
            history,
            kept,
            curves,
            longest,
            expected_gains: store.proposals().expectations(id).await?,
            inherits_cost: of_cost.map(|value| value.trial).collect(),
            variants,
            finished_trials,
            confirmed,
        })
    }

    /// All trials by number, with the metrics that decide.
    pub(super) fn all(&self) -> &[Trial] {
        &self.history
    }

    pub(super) fn get(&self, number: TrialNumber) -> Option<&Trial> {
        self.position(number).map(|at| &self.history[at])
    }

    /// Whether a trial was begun and is not finished.
    pub(super) fn is_open(&self, number: TrialNumber) -> bool {
        self.get(number).is_some_and(|trial| !trial.state.is_finished())
    }

    pub(super) fn is_tried(&self, params: &Params) -> bool {
        self.history.iter().any(|trial| trial.params == *params)
    }

    /// Number of trials that ran to their end.
    pub(super) fn complete(&self) -> u64 {
        let complete = self.history.iter().filter(|trial| trial.state.name() == "complete");
        complete.count() as u64
    }

    /// The sums over the finished trials.
    pub(super) fn finished_trials(&self) -> &FinishedTrials {
        &self.finished_trials
    }

    /// Curves that finished trials told on their way, where a pruner asks for them.
    pub(super) fn curves(&self) -> &BTreeMap<TrialNumber, Curve> {
        &self.curves
    }

    /// The last step of the longest trial that was not stopped.
    pub(super) fn longest(&self) -> Option<u64> {
        self.longest
    }

    /// A trial of a setting, behind all others. It is not among them before it begins.
    pub(super) fn next(&self, proposed: &Proposed) -> Trial {
        Trial {
            number: TrialNumber(self.history.last().map_or(0, |trial| trial.number.0 + 1)),
            params: proposed.params.clone(),
            state: TrialState::Waiting,
        }
    }

    /// The answer of `ask` where these settings count as trials too.
    pub(super) fn with_waiting<'a, R>(
        &mut self,
        waiting: impl Iterator<Item = &'a Proposed>,
        ask: impl FnOnce(&[Trial]) -> R,
    ) -> R {
        let known = self.history.len();
        for proposed in waiting {
            let trial = self.next(proposed);
            self.history.push(trial);
        }
        let answer = ask(&self.history);
        self.history.truncate(known);
        answer
    }

    /// Puts a trial that begins among the others, for the first time or once more.
    pub(super) fn begin(&mut self, trial: Trial) {
        match self.position(trial.number) {
            Some(at) => self.history[at] = trial,
            None => self.history.push(trial),
        }
    }

    /// Lets a trial wait to be run again, with nothing taken over.
    pub(super) fn hand_back(&mut self, number: TrialNumber) {
        if let Some(at) = self.position(number) {
            self.history[at].state = TrialState::Waiting;
        }
        self.variants.remove(&number);
        self.inherits_cost.remove(&number);
    }

    /// Counts how a trial ended, and returns it with all of its metrics. [`Trials::keep`] then keeps what is to stay of it.
    pub(super) fn end(&mut self, number: TrialNumber, state: TrialState, problem: &Problem) -> Option<Trial> {
        let mut trial = self.get(number).cloned()?;
        trial.state = state;
        self.finished_trials.count(problem, std::slice::from_ref(&trial));
        self.finished_trials
            .count_variants(u64::from(self.variants.contains(&number)));
        Some(trial)
    }

    /// Keeps the part of a finished trial that samplers, rules and the front look at.
    pub(super) fn keep(&mut self, mut trial: Trial) {
        self.kept.reduce(&mut trial);
        if let Some(at) = self.position(trial.number) {
            self.history[at] = trial;
        }
    }

    /// Keeps the curve that a trial told on its way to its end.
    pub(super) fn end_curve(&mut self, number: TrialNumber, mut curve: Curve, is_complete: bool) {
        if curve.is_empty() {
            return;
        }
        if is_complete {
            self.longest = self.longest.max(Some(curve.last_step()));
        }
        if self.kept.keeps_curves() {
            self.kept.reduce_curve(&mut curve);
            self.curves.insert(number, curve);
        }
    }

    /// Replaces the values of the profile phase that count for a trial.
    pub(super) fn replace_cost(&mut self, number: TrialNumber, old: &Metrics, new: &Metrics, problem: &Problem) {
        let Some(mut trial) = self.get(number).cloned() else {
            return;
        };
        if let Some(metrics) = trial.state.metrics_mut() {
            metrics.retain(|name| old.value(name).is_none());
            for (name, value) in new.iter() {
                metrics.insert(name, value);
            }
        }
        self.finished_trials.count_best(problem, std::slice::from_ref(&trial));
        self.keep(trial);
    }

    /// Notes how much hypervolume a trial is expected to add.
    pub(super) fn expect_gain(&mut self, number: TrialNumber, gain: f64) {
        self.expected_gains.insert(number, gain);
    }

    pub(super) fn expected_gain(&self, number: TrialNumber) -> Option<f64> {
        self.expected_gains.get(&number).copied()
    }

    /// Notes that a trial takes its cost over from another.
    pub(super) fn take_cost_over(&mut self, number: TrialNumber) {
        self.inherits_cost.insert(number);
    }

    /// Notes that a trial takes its loss over from another.
    pub(super) fn take_loss_over(&mut self, number: TrialNumber) {
        self.variants.insert(number);
    }

    /// Whether a trial took its loss over from another.
    pub(super) fn is_variant(&self, number: TrialNumber) -> bool {
        self.variants.contains(&number)
    }

    /// Trials that took their loss over from another, those under way included.
    pub(super) fn variants(&self) -> u64 {
        self.variants.len() as u64
    }

    /// Whether a trial's cost was not taken over from another.
    pub(super) fn has_own_cost(&self, number: TrialNumber) -> bool {
        !self.inherits_cost.contains(&number)
    }

    /// The reason why further trials would bring next to nothing, where the rule finds that they would.
    pub(super) fn stop_reason(&self, rule: &StopRule, problem: &Problem) -> Option<String> {
        let finished = self.history.iter().filter(|one| one.state.is_finished());
        let finished: Vec<Trial> = finished.cloned().collect();
        let expected: Vec<Option<f64>> = finished.iter().map(|trial| self.expected_gain(trial.number)).collect();
        let volumes = hypervolume_history(problem, &with_confirmed(&finished, &self.confirmed));
        stop_reason(rule, &volumes, &expected)
    }

    fn position(&self, number: TrialNumber) -> Option<usize> {
        // Numbers ascend, so a search need not look at thousands of trials.
        self.history.binary_search_by_key(&number, |trial| trial.number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::Objective;
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::ParamValue;
    use peft_tune_search::Random;

    fn problem() -> Problem {
        Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: vec![Objective::new("loss")],
            constraints: Vec::new(),
        }
    }

    fn trials() -> Trials {
        Trials {
            history: Vec::new(),
            kept: KeptMetrics::new(&problem(), &Random::new(0), false),
            curves: BTreeMap::new(),
            longest: None,
            expected_gains: BTreeMap::new(),
            variants: BTreeSet::new(),
            inherits_cost: BTreeSet::new(),
            finished_trials: FinishedTrials::default(),
            confirmed: Confirmations::new(),
        }
    }

    fn proposed(rank: i64) -> Proposed {
        Proposed {
            params: [("rank".to_owned(), ParamValue::Int(rank))].into(),
            score: None,
        }
    }

    #[test]
    fn what_waits_is_a_trial_to_the_sampler_alone() {
        let mut trials = trials();
        trials.begin(trials.next(&proposed(4)));
        let waiting = [proposed(8), proposed(16)];
        let seen = trials.with_waiting(waiting.iter(), |history| {
            history.iter().map(|trial| trial.number.0).collect::<Vec<_>>()
        });
        assert_eq!((seen, trials.all().len()), (vec![0, 1, 2], 1));
        assert_eq!(trials.next(&proposed(8)).number, TrialNumber(1));
        assert!(trials.is_tried(&proposed(4).params) && !trials.is_tried(&proposed(8).params));
    }

    #[test]
    fn a_trial_that_ends_is_counted_in_full_and_kept_in_part() {
        let mut trials = trials();
        let trial = trials.next(&proposed(4));
        let number = trial.number;
        trials.begin(trial);
        trials.take_loss_over(number);
        assert!(trials.is_open(number));
        let metrics = [("loss", 2.0), ("load_s", 3.0)].into();
        let ended = trials
            .end(number, TrialState::Complete { metrics }, &problem())
            .unwrap();
        assert_eq!(ended.state.metrics().unwrap().value("load_s"), Some(3.0));
        trials.keep(ended);
        assert!(!trials.is_open(number));
        let kept = trials.get(number).unwrap().state.metrics().unwrap();
        assert_eq!(*kept, [("loss", 2.0)].into());
        let finished_trials = trials.finished_trials();
        assert_eq!(
            (
                finished_trials.finished(),
                finished_trials.counted(),
                finished_trials.best()["loss"]
            ),
            (1, 0, 2.0)
        );
    }

    #[test]
    fn another_cost_takes_the_place_of_what_was_measured_before() {
        let mut trials = trials();
        let trial = trials.next(&proposed(4));
        let number = trial.number;
        trials.begin(trial);
        let old: Metrics = [("loss_at_least", 1.0)].into();
        let metrics = [("loss", 2.0), ("loss_at_least", 1.0)].into();
        let ended = trials
            .end(number, TrialState::Complete { metrics }, &problem())
            .unwrap();
        trials.keep(ended);
        trials.replace_cost(number, &old, &[("loss_expected", 4.0)].into(), &problem());
        let kept = trials.get(number).unwrap().state.metrics().unwrap();
        assert_eq!(*kept, [("loss", 2.0), ("loss_expected", 4.0)].into());
    }
}
