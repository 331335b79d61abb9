//! Measuring again what was disturbed: soon after, once another measurement was quiet, and else at the search's end, when other
//! programs leave the processors alone for a moment.
//!
//! A measurement is disturbed where the machine says so (`profile::disturbance` of the engine), or where its throughput is
//! far below what the other trials let expect (`outlier`). Its profile phase is then repeated; the loss is kept. A disturbance
//! only takes time away, so of all measurements those within 10% of the highest count: the first quiet one of them, else the
//! highest, with its mark. A suspect throughput that a quiet repeat reproduces is believed.

use std::collections::{BTreeMap, BTreeSet};

use super::decide::whole_task;
use super::idle_tasks::IdleRun;
use super::outlier::{SAME, suspicion};
use super::reuse::Measurement;
use super::schedule::SHARE_FOR_REPEATS;
use super::trials::Trials;
use super::{TuneError, Tuner};
use crate::store::Measurements;
use crate::worker::Task;
use peft_tune_core::objective::{REPEAT_WALL_S, THROUGHPUT};
use peft_tune_core::study::{
    DISTURBED, Metrics, Trial, TrialNumber, TrialPlan, disturbed, in_peace, mark_disturbed, neighbours,
};
use peft_tune_engine::profile::disturbance::{HostCounters, OtherLoad};
use peft_tune_search::pareto_front;

/// Repeats of one trial in one search.
const MOST_REPEATS: usize = 3;
/// Repeats of all trials, for each that measured its own cost, and however few these are; of the front, more, see
/// `next_disturbed`.
const SHARE_OF_TRIALS: f64 = 0.25;
const FEWEST_REPEATS: usize = 4;
/// Longest pause behind a repeat that was disturbed too, in seconds.
const LONGEST_PAUSE_S: f64 = 5.0;
/// Most seconds of a search that are spent waiting for other programs to leave the processors alone, where nothing else is said.
const LONGEST_WAIT_S: f64 = 30.0;
/// Seconds between two looks at what others do; so many calm ones in a row are a quiet moment, in which others kept fewer
/// processors busy than this.
const LOOK_S: f64 = 0.25;
const CALM_LOOKS: usize = 2;
const CALM_CORES: f64 = 0.25;

/// What is disturbed, and what was done about it.
#[derive(Debug, Default)]
pub(super) struct Remeasuring {
    /// Trials to measure again.
    open: BTreeSet<TrialNumber>,
    /// Trials whose throughput a repeat reproduced.
    reproduced: BTreeSet<TrialNumber>,
    /// Repeats by trial.
    done: BTreeMap<TrialNumber, usize>,
    spent_s: f64,
    /// Seconds spent waiting for a quiet moment.
    waited_s: f64,
    /// Seconds of these and of pauses that are stored with the next repeat.
    untold_s: f64,
    /// Most of these; [`LONGEST_WAIT_S`] where nothing is said.
    most_waited_s: Option<f64>,
    /// Whether the last measurement was quiet.
    is_calm: bool,
}

impl Remeasuring {
    /// Waits for quiet moments at the end for so many seconds at most.
    pub(super) fn wait_at_most(&mut self, seconds: Option<f64>) {
        self.most_waited_s = seconds;
    }

    /// Seconds that repeats are expected to take at a search's end, where each takes so long and the moments are quiet.
    pub(super) fn expected_s(&self, each_s: f64) -> f64 {
        let open = self.open.iter();
        let open = open.filter(|number| self.done.get(*number).is_none_or(|done| *done < MOST_REPEATS));
        open.count() as f64 * (each_s + CALM_LOOKS as f64 * LOOK_S)
    }

    /// Begins with what earlier searches measured.
    pub(super) fn of(trials: &Trials, known: &Measurements) -> Self {
        let finished = trials.all().iter().filter(|trial| trial.state.is_finished());
        let own = finished.filter(|trial| trials.has_own_cost(trial.number));
        let is_open = |trial: &&Trial| {
            trial
                .state
                .metrics()
                .is_some_and(|metrics| disturbed(metrics).is_some())
        };
        let reproduced = known.iter().filter(|(_, measured)| is_reproduced(measured));
        Self {
            open: own.filter(is_open).map(|trial| trial.number).collect(),
            reproduced: reproduced.map(|(number, _)| *number).collect(),
            ..Self::default()
        }
    }
}

impl Tuner<'_> {
    /// Marks what a trial measured where it is disturbed, or does not trust the mark of one that shared its hardware on purpose:
    /// what that takes is said with the number of neighbours.
    pub(super) fn judge_measurement(&self, number: TrialNumber, metrics: &mut Metrics) {
        if neighbours(metrics).is_some() {
            metrics.retain(|name| name != DISTURBED);
        } else if let Some(share) = self.suspicion(number, metrics) {
            mark_disturbed(metrics, share);
        }
    }

    /// Keeps in mind what a trial that ended has measured itself.
    pub(super) fn note_measurement(&mut self, number: TrialNumber, metrics: &Metrics) {
        if metrics.value(THROUGHPUT).is_none() {
            return;
        }
        self.again.is_calm = disturbed(metrics).is_none();
        if !self.again.is_calm {
            self.again.open.insert(number);
            tracing::info!(trial = number.0, "something else slowed the measurement down");
        }
    }

    /// The share that a throughput lost, going by the other trials.
    fn suspicion(&self, number: TrialNumber, metrics: &Metrics) -> Option<f64> {
        let predictions = self.predictions.as_ref()?;
        let ratio = |trial: &Trial, metrics: &Metrics| predictions.ratio(&trial.params, metrics);
        let own = ratio(self.trials.get(number)?, metrics)?;
        let others = self.trials.all().iter();
        let others = others.filter(|other| other.number != number && self.measured_itself(other.number));
        let (mut ratios, mut reproduced) = (Vec::new(), Vec::new());
        for other in others {
            let quiet = other.state.metrics().filter(|metrics| disturbed(metrics).is_none());
            if let Some(found) = quiet.and_then(|metrics| ratio(other, metrics)) {
                ratios.push(found);
                if self.again.reproduced.contains(&other.number) {
                    reproduced.push(found);
                }
            }
        }
        suspicion(own, &ratios, &reproduced)
    }

    /// Whether a trial's cost is its own, and of the form that the ops have now.
    fn measured_itself(&self, number: TrialNumber) -> bool {
        self.trials.has_own_cost(number) && self.forms.is_current(number)
    }

    /// Measures one disturbed trial again where nothing else runs and the last measurement was quiet.
    pub(super) async fn measure_again_if_calm(&mut self) -> Result<(), TuneError> {
        let may = self.again.is_calm && self.running.is_empty() && !self.parts.interrupt.is_requested();
        if let Some(number) = self.next_disturbed(false).filter(|_| may) {
            self.measure_again(number).await?;
        }
        Ok(())
    }

    /// Measures what is still disturbed, as long as repeats are left. Trials of the first hours are looked at once more: by now
    /// there are others to compare them with.
    pub(super) async fn measure_again_at_end(&mut self) -> Result<(), TuneError> {
        self.look_back().await?;
        while let Some(number) = self.next_disturbed(self.may_wait()) {
            if self.parts.interrupt.is_requested() {
                break;
            }
            self.wait_for_calm().await;
            let begun = std::time::Instant::now();
            self.measure_again(number).await?;
            if !self.again.is_calm {
                let pause = begun.elapsed().as_secs_f64().min(LONGEST_PAUSE_S);
                let pause = pause.min(self.schedule().left_s().max(0.0));
                tokio::time::sleep(std::time::Duration::from_secs_f64(pause)).await;
                self.count_wait(pause);
            }
        }
        Ok(())
    }

    /// Waits until other programs leave the host's processors alone, as long as seconds for that are left: they come in bursts,
    /// and repeats in a row would all fall into one.
    async fn wait_for_calm(&mut self) {
        let longest_s = self
            .longest_wait_s()
            .min(self.again.waited_s + self.schedule().left_s());
        let mut others = OtherLoad::start(Box::new(HostCounters::default()));
        let (begun, mut calm) = (std::time::Instant::now(), 0);
        while calm < CALM_LOOKS && !self.parts.interrupt.is_requested() {
            if self.again.waited_s + begun.elapsed().as_secs_f64() >= longest_s {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_secs_f64(LOOK_S)).await;
            let is_calm = others.cores().is_none_or(|cores| cores < CALM_CORES);
            calm = if is_calm { calm + 1 } else { 0 };
        }
        let waited_s = begun.elapsed().as_secs_f64();
        self.again.waited_s += waited_s;
        self.count_wait(waited_s);
    }

    /// Counts seconds in which nothing ran: the next repeat tells them.
    fn count_wait(&mut self, seconds: f64) {
        self.again.untold_s += seconds;
        self.clock.waited(seconds);
    }

    fn longest_wait_s(&self) -> f64 {
        let budget_s = self.parts.study.budget.time_s;
        let usual = || budget_s.map_or(LONGEST_WAIT_S, |budget| LONGEST_WAIT_S.min(SHARE_FOR_REPEATS * budget));
        self.again.most_waited_s.unwrap_or_else(usual)
    }

    /// Whether seconds are left to wait for quiet moments.
    fn may_wait(&self) -> bool {
        self.again.waited_s < self.longest_wait_s()
    }

    /// Marks earlier trials that the study shows to be suspect by now.
    async fn look_back(&mut self) -> Result<(), TuneError> {
        let finished = self.trials.all().iter().filter(|trial| trial.state.is_finished());
        let quiet = finished.filter(|trial| {
            self.measured_itself(trial.number)
                && !self.again.open.contains(&trial.number)
                && !self.again.reproduced.contains(&trial.number)
        });
        let suspect: Vec<(TrialNumber, f64)> = quiet
            .filter_map(|trial| Some((trial.number, self.suspicion(trial.number, trial.state.metrics()?)?)))
            .collect();
        for (number, share) in suspect {
            let old = self.stored_cost(number).await?;
            if neighbours(&old).is_some() {
                continue;
            }
            let mut marked = old.clone();
            mark_disturbed(&mut marked, share);
            self.put_cost(number, &old, &marked).await?;
            self.again.open.insert(number);
        }
        Ok(())
    }

    /// The disturbed trial to measure next: one that could be on the front first. `None` where none is left, or no repeat. The front
    /// is measured to its last trial as long as quiet moments are waited for.
    fn next_disturbed(&self, waits: bool) -> Option<TrialNumber> {
        let again = &self.again;
        let own = self.trials.all().iter().filter(|trial| {
            let measured = trial.state.metrics().and_then(|metrics| metrics.value(THROUGHPUT));
            measured.is_some() && self.trials.has_own_cost(trial.number)
        });
        let most = ((SHARE_OF_TRIALS * own.count() as f64) as usize).max(FEWEST_REPEATS);
        let budget_s = self.parts.study.budget.time_s;
        let time_left = budget_s.is_none_or(|budget| again.spent_s < SHARE_FOR_REPEATS * budget);
        let is_spent = again.done.values().sum::<usize>() >= most;
        let has_time = time_left && self.schedule().left_s() > self.clock.repeat_s().unwrap_or(0.0);
        if !has_time || (is_spent && !waits) {
            return None;
        }
        let may = |number: &&TrialNumber| {
            again.done.get(number).is_none_or(|done| *done < MOST_REPEATS) && self.forms.is_current(**number)
        };
        let open: Vec<TrialNumber> = again.open.iter().filter(may).copied().collect();
        let best = self.on_front_in_peace(&open);
        best.or_else(|| open.first().copied().filter(|_| !is_spent))
    }

    /// The first of these trials that would be on the front with what it may reach in peace.
    fn on_front_in_peace(&self, open: &[TrialNumber]) -> Option<TrialNumber> {
        if open.is_empty() {
            return None;
        }
        let mut history = self.trials.all().to_vec();
        for trial in &mut history {
            if let Some(metrics) = trial.state.metrics_mut() {
                *metrics = in_peace(std::mem::take(metrics));
            }
        }
        let front: BTreeSet<TrialNumber> = pareto_front(&self.problem, &history)
            .iter()
            .map(|one| one.trial.number)
            .collect();
        open.iter().find(|number| front.contains(number)).copied()
    }

    /// Repeats the profile phase of a trial, and lets count what counts by then.
    async fn measure_again(&mut self, number: TrialNumber) -> Result<(), TuneError> {
        let done = self.again.done.entry(number).or_default();
        *done += 1;
        let repeat = *done as u64;
        let ran = self.profile_again(number, repeat).await?;
        let Some(found) = ran.metrics.filter(|_| self.forms.is_current(number)) else {
            // A trial that fails when it is repeated, or whose kernels do, keeps what was measured.
            self.again.open.remove(&number);
            return Ok(());
        };
        let mut found = Measurement::Cost.of(&found);
        self.again.is_calm = disturbed(&found).is_none();
        let old = self.stored_cost(number).await?;
        let (store, id) = (self.parts.store, self.parts.id);
        found.insert(REPEAT_WALL_S, ran.wall_s + std::mem::take(&mut self.again.untold_s));
        store.record_measurement(id, number, &old, &found).await?;
        let mut measured = store.measurements(id).await?.remove(&number).unwrap_or_default();
        // What a repeat took is nothing that the trial measured.
        let of_trial = |one: &mut Metrics| one.retain(|name| name != REPEAT_WALL_S);
        measured.iter_mut().for_each(of_trial);
        let counting = self.counting(number, &measured);
        if disturbed(&counting).is_none() {
            self.again.open.remove(&number);
            if is_reproduced(&measured) {
                self.again.reproduced.insert(number);
            }
        }
        tracing::info!(
            trial = number.0,
            repeat,
            throughput = counting.value(THROUGHPUT),
            disturbed = disturbed(&counting).unwrap_or(0.0),
            "a disturbed trial was measured again"
        );
        self.put_cost(number, &old, &counting).await
    }

    /// What counts of a trial's measurements. A suspect one counts only where another reproduces it.
    fn counting(&self, number: TrialNumber, measured: &[Metrics]) -> Metrics {
        let mut chosen = chosen(measured);
        if disturbed(&chosen).is_none() && !is_reproduced(measured) {
            self.judge_measurement(number, &mut chosen);
        }
        chosen
    }

    /// Runs a trial's profile phase once more.
    async fn profile_again(&mut self, number: TrialNumber, repeat: u64) -> Result<IdleRun, TuneError> {
        let study = self.parts.study;
        let Some(Ok(Task::Recipe { recipe, plan })) =
            self.trials.get(number).map(|trial| whole_task(study, &trial.params))
        else {
            return Ok(IdleRun::default());
        };
        let plan = TrialPlan {
            measure: plan.measure,
            train: None,
        };
        self.parts.observer.measuring_again(number, repeat);
        let task = Task::Recipe { recipe, plan };
        let ran = self.run_idle(number, 1 + repeat, task).await?;
        self.again.spent_s += ran.wall_s;
        self.clock.measured_again(ran.wall_s);
        Ok(ran)
    }

    pub(super) async fn stored_cost(&self, number: TrialNumber) -> Result<Metrics, TuneError> {
        Ok(Measurement::Cost.of(&self.parts.store.metrics(self.parts.id, number).await?))
    }

    /// Lets other values of the profile phase count, for the trial and for those that took them over.
    pub(super) async fn put_cost(
        &mut self,
        number: TrialNumber,
        old: &Metrics,
        new: &Metrics,
    ) -> Result<(), TuneError> {
        let (store, id) = (self.parts.store, self.parts.id);
        for changed in store.replace_cost(id, number, old, new).await? {
            self.trials.replace_cost(changed, old, new, &self.problem);
        }
        if let (Some(trial), Some(predictions)) = (self.trials.get(number), &mut self.predictions) {
            predictions.learn(trial);
        }
        Ok(())
    }
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
}
