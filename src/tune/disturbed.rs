//! Trials whose measurement something else disturbed, and their repeats.
//!
//! A measurement is disturbed where the machine says so (`profile::disturbance` of the engine), or where its throughput is
//! far below what the other trials let expect (`outlier`). A disturbance only takes time away, so of all measurements those
//! within 10% of the highest count: the first quiet one of them, else the highest, with its mark. A suspect throughput that a
//! quiet repeat reproduces is believed.

use std::collections::{BTreeMap, BTreeSet};

use super::kernel_form::KernelForms;
use super::outlier::{SAME, suspicion};
use super::predictions::Predictions;
use super::trials::Trials;
use crate::store::Measurements;
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{DISTURBED, Metrics, Trial, TrialNumber, disturbed, in_peace, mark_disturbed, neighbours};
use peft_tune_search::{Problem, pareto_front};

/// Repeats of one trial in one search.
const MOST_REPEATS: usize = 3;
/// Repeats of all trials: their share of the trials that measured their own cost, and how many there may be however few
/// these are. The front gets more, see [`DisturbedTrials::next`].
const SHARE_OF_TRIALS: f64 = 0.25;
const FEWEST_REPEATS: usize = 4;
/// Share of a budget of time that repeats may take, and the waits before them.
pub(super) const SHARE_FOR_REPEATS: f64 = 0.1;
/// Seconds between two looks at what others do; so many calm ones in a row are a quiet moment.
pub(super) const LOOK_S: f64 = 0.25;
pub(super) const CALM_LOOKS: usize = 2;
/// Least seconds from one repeat to the next.
pub(super) const LEAST_WAIT_S: f64 = CALM_LOOKS as f64 * LOOK_S;
/// Measurements of which not one was quiet, from which on no quiet moment is expected in a budget of time.
const NEVER_QUIET: usize = 4;
/// Most seconds of a search that are spent waiting for other programs to leave the processors alone, where nothing else is said.
const LONGEST_WAIT_S: f64 = 30.0;

/// Trials that were measured, by which the measurements of others are judged.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) trials: &'a Trials,
    pub(super) forms: &'a KernelForms,
    pub(super) predictions: Option<&'a Predictions>,
}

impl Measured<'_> {
    /// Whether a trial's cost is its own, and of the form that the ops have now.
    fn has_own(&self, number: TrialNumber) -> bool {
        self.trials.has_own_cost(number) && self.forms.is_current(number)
    }
}

/// Disturbed trials, and the repeats of them.
#[derive(Debug, Default)]
pub(super) struct DisturbedTrials {
    /// Trials to measure again.
    open: BTreeSet<TrialNumber>,
    /// Trials whose throughput a repeat reproduced.
    reproduced: BTreeSet<TrialNumber>,
    /// Repeats by trial.
    done: BTreeMap<TrialNumber, usize>,
    spent_s: f64,
    /// Seconds spent waiting for a quiet moment.
    waited_s: f64,
    /// Seconds of waits and pauses that are stored with the next repeat.
    untold_s: f64,
    /// Most seconds to wait for quiet moments; [`LONGEST_WAIT_S`] where nothing is said.
    most_waited_s: Option<f64>,
    /// Whether the last measurement was quiet.
    is_calm: bool,
    /// Measurements of this search that were quiet, and all of them.
    quiet: usize,
    measured: usize,
}

impl DisturbedTrials {
    /// The trials that earlier searches left disturbed; `known` are all measurements of trials that were measured
    /// again.
    pub(super) fn of(trials: &Trials, known: &Measurements) -> Self {
        let finished = trials.all().iter().filter(|trial| trial.state.is_finished());
        let own = finished.filter(|trial| trials.has_own_cost(trial.number));
        let is_open = |trial: &&Trial| {
            let metrics = trial.state.metrics();
            metrics.is_some_and(|metrics| disturbed(metrics).is_some())
        };
        let reproduced = known.iter().filter(|(_, measured)| is_reproduced(measured));
        Self {
            open: own.filter(is_open).map(|trial| trial.number).collect(),
            reproduced: reproduced.map(|(number, _)| *number).collect(),
            ..Self::default()
        }
    }

    /// Sets the seconds for which quiet moments at the search's end are waited for at most.
    pub(super) fn wait_at_most(&mut self, seconds: Option<f64>) {
        self.most_waited_s = seconds;
    }

    /// Whether the last measurement was quiet.
    pub(super) fn is_calm(&self) -> bool {
        self.is_calm
    }

    /// Marks a trial's metrics where its measurement is disturbed, or removes the mark from a trial that shared its
    /// hardware on purpose: what that takes is said with the number of neighbours.
    pub(super) fn judge(&self, number: TrialNumber, metrics: &mut Metrics, measured: &Measured<'_>) {
        if neighbours(metrics).is_some() {
            metrics.retain(|name| name != DISTURBED);
        } else if let Some(share) = self.suspicion(number, metrics, measured) {
            mark_disturbed(metrics, share);
        }
    }

    /// Takes in what a trial that ended has measured itself.
    pub(super) fn note(&mut self, number: TrialNumber, metrics: &Metrics) {
        if metrics.value(THROUGHPUT).is_none() {
            return;
        }
        self.count(metrics);
        if !self.is_calm {
            self.open.insert(number);
            tracing::info!(trial = number.0, "something else slowed the measurement down");
        }
    }

    /// Earlier trials that the study shows to be suspect by now, with the share that each may have lost.
    pub(super) fn suspects(&self, measured: &Measured<'_>) -> Vec<(TrialNumber, f64)> {
        let finished = measured.trials.all().iter().filter(|trial| trial.state.is_finished());
        let quiet = finished.filter(|trial| {
            let number = &trial.number;
            measured.has_own(*number) && !self.open.contains(number) && !self.reproduced.contains(number)
        });
        let suspect = quiet.filter_map(|trial| {
            let share = self.suspicion(trial.number, trial.state.metrics()?, measured)?;
            Some((trial.number, share))
        });
        suspect.collect()
    }

    /// Lets a trial be measured again.
    pub(super) fn open(&mut self, number: TrialNumber) {
        self.open.insert(number);
    }

    /// Lets a trial keep what was measured.
    pub(super) fn close(&mut self, number: TrialNumber) {
        self.open.remove(&number);
    }

    /// The disturbed trial to measure next: one that could be on the front first. `None` where none is left, or no
    /// repeat. The front is measured to its last trial as long as quiet moments are waited for.
    pub(super) fn next(&self, measured: &Measured<'_>, problem: &Problem, waits: bool) -> Option<TrialNumber> {
        let own = measured.trials.all().iter().filter(|trial| {
            let found = trial.state.metrics().and_then(|metrics| metrics.value(THROUGHPUT));
            found.is_some() && measured.trials.has_own_cost(trial.number)
        });
        let most = ((SHARE_OF_TRIALS * own.count() as f64) as usize).max(FEWEST_REPEATS);
        let is_spent = self.done.values().sum::<usize>() >= most;
        if is_spent && !waits {
            return None;
        }
        let may = |number: &&TrialNumber| self.may_repeat(**number) && measured.forms.is_current(**number);
        let open: Vec<TrialNumber> = self.open.iter().filter(may).copied().collect();
        let best = on_front_in_peace(&open, measured.trials.all(), problem);
        best.or_else(|| open.first().copied().filter(|_| !is_spent))
    }

    /// Counts a repeat that begins; returns which one of the trial's in this search it is, from 1.
    pub(super) fn begin_repeat(&mut self, number: TrialNumber) -> u64 {
        let done = self.done.entry(number).or_default();
        *done += 1;
        *done as u64
    }

    /// Adds the seconds of a repeat.
    pub(super) fn repeated(&mut self, wall_s: f64) {
        self.spent_s += wall_s;
    }

    /// The metrics that count of a trial's measurements. A suspect throughput counts only where another measurement
    /// reproduces it.
    pub(super) fn counting(&self, number: TrialNumber, all: &[Metrics], measured: &Measured<'_>) -> Metrics {
        let mut counting = chosen(all);
        if disturbed(&counting).is_none() && !is_reproduced(all) {
            self.judge(number, &mut counting, measured);
        }
        counting
    }

    /// Takes in a repeat that measured `last`, after which `counting` counts of `all` measurements.
    pub(super) fn settle(&mut self, number: TrialNumber, last: &Metrics, counting: &Metrics, all: &[Metrics]) {
        self.count(last);
        if disturbed(counting).is_none() {
            self.open.remove(&number);
            if is_reproduced(all) {
                self.reproduced.insert(number);
            }
        }
    }

    /// Counts a measurement of this search.
    fn count(&mut self, metrics: &Metrics) {
        self.is_calm = disturbed(metrics).is_none();
        self.measured += 1;
        self.quiet += usize::from(self.is_calm);
    }

    /// Whether nothing speaks for a quiet moment within a budget of time: the machine was busy in each of several measurements.
    /// Where the seconds to wait are said, they are waited for all the same.
    pub(super) fn expects_no_calm(&self, budget_s: Option<f64>) -> bool {
        let is_busy = self.quiet == 0 && self.measured >= NEVER_QUIET;
        is_busy && budget_s.is_some() && self.most_waited_s.is_none()
    }

    /// Adds seconds in which nothing ran, to be stored with the next repeat.
    pub(super) fn paused(&mut self, seconds: f64) {
        self.untold_s += seconds;
    }

    /// Adds seconds for which a quiet moment was waited for.
    pub(super) fn waited(&mut self, seconds: f64) {
        self.waited_s += seconds;
        self.paused(seconds);
    }

    /// Seconds of waits and pauses that are stored with the next repeat.
    pub(super) fn take_untold_s(&mut self) -> f64 {
        std::mem::take(&mut self.untold_s)
    }

    /// Seconds for which quiet moments may still be waited for.
    pub(super) fn wait_left_s(&self, budget_s: Option<f64>) -> f64 {
        if self.expects_no_calm(budget_s) {
            return 0.0;
        }
        let usual = || budget_s.map_or(LONGEST_WAIT_S, |budget| LONGEST_WAIT_S.min(SHARE_FOR_REPEATS * budget));
        self.most_waited_s.unwrap_or_else(usual) - self.waited_s
    }

    /// Whether repeats have not taken their share of a budget of time yet.
    pub(super) fn has_share_left(&self, budget_s: Option<f64>) -> bool {
        budget_s.is_none_or(|budget| self.spent_s < SHARE_FOR_REPEATS * budget)
    }

    /// Trials that are to be measured again and may be.
    pub(super) fn left(&self) -> usize {
        self.open.iter().filter(|number| self.may_repeat(**number)).count()
    }

    fn may_repeat(&self, number: TrialNumber) -> bool {
        self.done.get(&number).is_none_or(|done| *done < MOST_REPEATS)
    }

    /// The share that a throughput lost, going by the other trials.
    fn suspicion(&self, number: TrialNumber, metrics: &Metrics, measured: &Measured<'_>) -> Option<f64> {
        let predictions = measured.predictions?;
        let ratio = |trial: &Trial, metrics: &Metrics| predictions.ratio(&trial.params, metrics);
        let own = ratio(measured.trials.get(number)?, metrics)?;
        let others = measured.trials.all().iter();
        let others = others.filter(|other| other.number != number && measured.has_own(other.number));
        let (mut ratios, mut reproduced) = (Vec::new(), Vec::new());
        for other in others {
            let quiet = other.state.metrics().filter(|metrics| disturbed(metrics).is_none());
            if let Some(found) = quiet.and_then(|metrics| ratio(other, metrics)) {
                ratios.push(found);
                if self.reproduced.contains(&other.number) {
                    reproduced.push(found);
                }
            }
        }
        suspicion(own, &ratios, &reproduced)
    }
}

/// The first of these trials that would be on the front with what it may reach in peace.
fn on_front_in_peace(open: &[TrialNumber], history: &[Trial], problem: &Problem) -> Option<TrialNumber> {
    if open.is_empty() {
        return None;
    }
    let mut history = history.to_vec();
    for trial in &mut history {
        if let Some(metrics) = trial.state.metrics_mut() {
            *metrics = in_peace(std::mem::take(metrics));
        }
    }
    let front = pareto_front(problem, &history);
    let front: BTreeSet<TrialNumber> = front.iter().map(|one| one.trial.number).collect();
    open.iter().find(|number| front.contains(number)).copied()
}

/// The measurement that counts; nothing where there is none.
fn chosen(measured: &[Metrics]) -> Metrics {
    let near = || near_the_highest(measured);
    let quiet = near().find(|one| disturbed(one).is_none());
    let highest = || near().max_by(|a, b| throughput(a).total_cmp(&throughput(b)));
    quiet.or_else(highest).cloned().unwrap_or_default()
}

/// Whether a quiet measurement came to the same as another, and none to more.
fn is_reproduced(measured: &[Metrics]) -> bool {
    near_the_highest(measured).count() > 1 && near_the_highest(measured).any(|one| disturbed(one).is_none())
}

/// Measurements that came to the highest throughput, but for noise.
fn near_the_highest(measured: &[Metrics]) -> impl Iterator<Item = &Metrics> {
    let highest = measured.iter().map(throughput).fold(0.0, f64::max);
    measured.iter().filter(move |one| throughput(one) * SAME >= highest)
}

fn throughput(metrics: &Metrics) -> f64 {
    metrics.value(THROUGHPUT).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(throughput: f64, lost: f64) -> Metrics {
        let mut metrics = [(THROUGHPUT, throughput)].into();
        mark_disturbed(&mut metrics, lost);
        metrics
    }

    #[test]
    fn a_quiet_repeat_counts_in_the_place_of_what_was_slower() {
        let both = [measured(400.0, 0.6), measured(1000.0, 0.0)];
        assert_eq!((chosen(&both), is_reproduced(&both)), (both[1].clone(), false));
    }

    #[test]
    fn what_a_quiet_repeat_reproduces_is_believed() {
        let both = [measured(400.0, 0.6), measured(410.0, 0.0)];
        assert_eq!((chosen(&both), is_reproduced(&both)), (both[1].clone(), true));
    }

    #[test]
    fn where_no_moment_was_quiet_the_highest_counts_with_its_mark() {
        let all = [measured(400.0, 0.6), measured(700.0, 0.3), measured(500.0, 0.2)];
        assert_eq!((chosen(&all), is_reproduced(&all)), (all[1].clone(), false));
        // A quiet one that is slower than a disturbed one was not quiet enough.
        let odd = [measured(1000.0, 0.3), measured(500.0, 0.0)];
        assert_eq!(chosen(&odd), odd[0]);
        assert_eq!(chosen(&[]), Metrics::default());
    }

    #[test]
    fn a_trial_is_repeated_a_few_times_and_no_more() {
        let mut trials = DisturbedTrials::default();
        let number = TrialNumber(4);
        trials.note(number, &measured(400.0, 0.6));
        assert!(!trials.is_calm());
        for repeat in 1..=MOST_REPEATS {
            assert_eq!((trials.left(), trials.begin_repeat(number)), (1, repeat as u64));
        }
        assert_eq!(trials.left(), 0);
    }

    #[test]
    fn no_quiet_moment_is_expected_where_all_measurements_were_disturbed() {
        let mut trials = DisturbedTrials::default();
        for number in 0..NEVER_QUIET as u64 {
            assert!(!trials.expects_no_calm(Some(100.0)), "after {number}");
            trials.note(TrialNumber(number), &measured(400.0, 0.6));
        }
        assert!(trials.expects_no_calm(Some(100.0)) && !trials.expects_no_calm(None));
        assert_eq!((trials.wait_left_s(Some(100.0)), trials.wait_left_s(None)), (0.0, 30.0));
        trials.wait_at_most(Some(5.0));
        assert_eq!(trials.wait_left_s(Some(100.0)), 5.0);
        trials.wait_at_most(None);
        trials.settle(TrialNumber(0), &measured(900.0, 0.0), &measured(900.0, 0.0), &[]);
        assert!(!trials.expects_no_calm(Some(100.0)));
    }

    #[test]
    fn waits_are_told_with_the_next_repeat_and_end_with_their_share() {
        let mut trials = DisturbedTrials::default();
        assert_eq!(
            (trials.wait_left_s(None), trials.wait_left_s(Some(100.0))),
            (30.0, 10.0)
        );
        trials.waited(4.0);
        trials.paused(1.0);
        assert_eq!(trials.wait_left_s(Some(100.0)), 6.0);
        assert_eq!((trials.take_untold_s(), trials.take_untold_s()), (5.0, 0.0));
        trials.wait_at_most(Some(2.0));
        assert!(trials.wait_left_s(None) < 0.0);
        trials.repeated(10.0);
        assert!(!trials.has_share_left(Some(100.0)) && trials.has_share_left(None));
    }
}
