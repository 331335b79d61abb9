//! Trials that are repeated: the recommended one, and those that noise could put in its place.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use peft_tune_core::objective::{LOSS, MEASURED_STEPS, Objective, PEAK_MEMORY, THROUGHPUT, is_of_target};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{
    Confirmations, Confirmed, Metrics, Trial, TrialNumber, TrialState, disturbed, interval_of, with_confirmed,
};
use peft_tune_search::{Preference, Problem, at_full_length, evaluated, recommend};

/// Relative noise of a metric that does not say its own.
const USUAL_NOISE: f64 = 0.02;

/// A throughput that is at most this much higher, as a share, is worth no repeat.
const NEGLIGIBLE: f64 = 0.02;

/// Measured steps below which their range is no interval of their median: that of five holds it 94 times of 100.
pub(super) const FEWEST_STEPS: u64 = 5;

/// A study whose recommendation is confirmed.
#[derive(Clone, Copy)]
pub(super) struct Finalists<'a> {
    pub(super) problem: &'a Problem,
    pub(super) history: &'a [Trial],
    pub(super) confirmations: &'a Confirmations,
    pub(super) given_up: &'a [TrialNumber],
    /// Relative noise of a loss that was trained once, where seeds are what makes it noisy.
    pub(super) loss_noise: Option<f64>,
}

/// Direction in which noise moves the values of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Luck {
    Better,
    Worse,
}

impl Finalists<'_> {
    /// The recommended trial, then the one with the least loss, which decides what counts as nearly as good, then all
    /// that would be recommended if they were as much better, and the recommended one as much worse, as noise allows.
    pub(super) fn numbers(&self) -> Vec<TrialNumber> {
        self.numbers_among(&self.counted())
    }

    /// Finalists among trials that are as they count ([`Finalists::counted`]).
    fn numbers_among(&self, history: &[Trial]) -> Vec<TrialNumber> {
        let Some(recommended) = chosen(self.problem, history) else {
            return Vec::new();
        };
        let mut numbers = vec![recommended];
        let rivals = self.rivals(history, recommended);
        let least_loss = self.loss_noise.and_then(|_| least_loss(self.problem, history));
        for number in least_loss.into_iter().chain(rivals) {
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers
    }

    pub(super) fn recommended(&self) -> Option<TrialNumber> {
        chosen(self.problem, &self.counted())
    }

    /// The trials as they count: with what repeats say, and the losses that longer trainings let expect at the full length.
    fn counted(&self) -> Vec<Trial> {
        let history = with_confirmed(self.history, self.confirmations);
        at_full_length(&history).unwrap_or(history)
    }

    /// Whether a throughput that is as far off as its interval allows would put another trial in the recommended one's place, which
    /// is faster by more than a negligible share.
    fn depends_on_throughput(&self, history: &[Trial], recommended: TrialNumber) -> bool {
        let of_throughput = Finalists {
            loss_noise: None,
            ..*self
        };
        !of_throughput.rivals(history, recommended).is_empty()
    }

    /// Whether a trial's own profile phase tells its throughput within `interval`, and nothing else slowed it down.
    fn is_known_within(&self, number: TrialNumber, interval: f64) -> bool {
        let trial = self.history.iter().find(|trial| trial.number == number);
        let metrics = trial.and_then(|trial| trial.state.metrics());
        metrics.is_some_and(|metrics| {
            let own = metrics.value(&interval_of(THROUGHPUT));
            let are_enough = metrics
                .value(MEASURED_STEPS)
                .is_none_or(|steps| steps >= FEWEST_STEPS as f64);
            are_enough && disturbed(metrics).is_none() && own.is_some_and(|own| own <= interval)
        })
    }

    fn rivals(&self, history: &[Trial], recommended: TrialNumber) -> Vec<TrialNumber> {
        let complete = history.iter().filter(|trial| trial.number != recommended);
        let complete = complete.filter(|trial| matches!(trial.state, TrialState::Complete { .. }));
        complete
            .filter(|rival| {
                let mut shifted = history.to_vec();
                for trial in &mut shifted {
                    match trial.number {
                        number if number == rival.number => self.shift(trial, Luck::Better),
                        number if number == recommended => self.shift(trial, Luck::Worse),
                        _ => {}
                    }
                }
                chosen(self.problem, &shifted) == Some(rival.number)
            })
            .map(|rival| rival.number)
            .collect()
    }

    /// Makes the noisy objectives of a trial as much better or worse as their noise allows.
    fn shift(&self, trial: &mut Trial, luck: Luck) {
        let confirmed = self.confirmations.get(&trial.number);
        let TrialState::Complete { metrics } = &mut trial.state else {
            return;
        };
        let noisy = self.problem.objectives.iter().filter(|one| self.is_noisy(one));
        for objective in noisy {
            let Some(value) = metrics.value(&objective.metric) else {
                continue;
            };
            let repeated = confirmed
                .and_then(|known| known.get(&objective.metric))
                .filter(|one| one.repeats > 1);
            let noise = self.noise(objective, metrics, repeated, luck);
            let towards = match luck {
                Luck::Better => -1.0,
                Luck::Worse => 1.0,
            };
            let minimised = objective.minimised(value);
            metrics.insert(
                objective.metric.clone(),
                objective.minimised(minimised + towards * noise * minimised.abs()),
            );
        }
    }

    /// Relative noise by which an objective may be better or worse than these metrics of a trial say, and its repeats.
    fn noise(&self, objective: &Objective, metrics: &Metrics, repeated: Option<&Confirmed>, luck: Luck) -> f64 {
        let seeds = self.loss_noise.filter(|_| objective.metric == LOSS);
        let noise = match (seeds, repeated) {
            (Some(noise), Some(repeated)) => noise / (repeated.repeats as f64).sqrt(),
            (Some(noise), None) => noise,
            (None, Some(repeated)) => repeated.interval,
            (None, None) => metrics.value(&interval_of(&objective.metric)).unwrap_or(USUAL_NOISE),
        };
        match luck {
            // A speed that is higher by what nobody would notice is none.
            Luck::Better if objective.metric == THROUGHPUT => noise - NEGLIGIBLE,
            Luck::Better => noise,
            // A disturbance only takes away: it makes no value worse than it is.
            Luck::Worse if repeated.is_none() && disturbed(metrics).is_some() => noise.min(USUAL_NOISE),
            Luck::Worse => noise,
        }
    }

    /// Whether repeats differ in an objective: the native engine's in throughput and, by the seed, in the loss; a command's
    /// may in any.
    fn is_noisy(&self, objective: &Objective) -> bool {
        if is_of_target(&objective.metric) {
            return false;
        }
        objective.metric == THROUGHPUT
            || (objective.metric == LOSS && self.loss_noise.is_some())
            || !self.problem.objectives.iter().any(|one| one.metric == THROUGHPUT)
    }
}

fn chosen(problem: &Problem, history: &[Trial]) -> Option<TrialNumber> {
    let recommended = recommend(problem, history, &Preference::default()).ok()?;
    Some(recommended.trial.number)
}

/// The complete trial that keeps every constraint and has the least loss.
fn least_loss(problem: &Problem, history: &[Trial]) -> Option<TrialNumber> {
    let loss = problem.objectives.iter().position(|one| one.metric == LOSS)?;
    let feasible = evaluated(problem, history).into_iter().filter(|one| one.is_feasible());
    let least = feasible.min_by(|a, b| a.values[loss].total_cmp(&b.values[loss]))?;
    Some(least.trial.number)
}

/// The trial to profile next, or to run again as a command; `None` when all that may be confirmed are, or what is known well enough
/// already could change no choice. A trial that others' repeats made the recommended one is confirmed however many were: the
/// plan's limit is for its rivals.
pub(super) fn next_trial(finalists: &Finalists<'_>, plan: &ConfirmPlan) -> Option<TrialNumber> {
    let confirmations = finalists.confirmations;
    let begun = confirmations
        .values()
        .filter(|known| costs(known).next().is_some())
        .count() as u64;
    let history = finalists.counted();
    let numbers = finalists.numbers_among(&history);
    let recommended = *numbers.first()?;
    let is_seeds = finalists.loss_noise.is_some();
    let decides = LazyCell::new(|| finalists.depends_on_throughput(&history, recommended));
    let open = |number: &TrialNumber| {
        let known = confirmations.get(number);
        let may_begin = begun < plan.trials || *number == recommended;
        let may = may_begin || known.is_some_and(|known| costs(known).next().is_some());
        let is_known = finalists.is_known_within(*number, plan.interval) && !*decides;
        may && !is_known
            && !known.is_some_and(|known| is_settled(known, plan, is_seeds))
            && !finalists.given_up.contains(number)
    };
    numbers.into_iter().find(open)
}

/// Values that were confirmed, but for the loss where it is alone: other seeds confirmed that.
fn costs(confirmed: &BTreeMap<String, Confirmed>) -> impl Iterator<Item = (&String, &Confirmed)> {
    let is_alone = confirmed.len() == 1;
    confirmed.iter().filter(move |(metric, _)| !is_alone || *metric != LOSS)
}

/// Whether a trial's repeats are enough: the interval is narrow, or there are as many as there may be. Where seeds make the
/// loss noisy, its repeats are counted apart.
fn is_settled(confirmed: &BTreeMap<String, Confirmed>, plan: &ConfirmPlan, is_seeds: bool) -> bool {
    let counted = || confirmed.iter().filter(|(metric, _)| !is_seeds || *metric != LOSS);
    let repeated = counted().map(|(_, one)| one.repeats).max().unwrap_or(0);
    let mut noisy = counted().filter(|(metric, _)| *metric != PEAK_MEMORY);
    repeated >= plan.repeats || (repeated > 1 && noisy.all(|(_, one)| one.interval <= plan.interval))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::space::{RepeatsInAll, SearchSpace};

    const PLAN: ConfirmPlan = ConfirmPlan {
        trials: 1,
        repeats: 2,
        in_all: RepeatsInAll::Unlimited,
        steps: 3,
        interval: 0.02,
        trainings: None,
        longer: 0.0,
    };

    fn problem(metrics: &[&str]) -> Problem {
        Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: metrics.iter().map(|metric| Objective::new(metric)).collect(),
            constraints: Vec::new(),
        }
    }

    fn trial(number: u64, known: &[(&str, f64)]) -> Trial {
        let mut metrics = Metrics::default();
        known.iter().for_each(|(name, value)| _ = metrics.insert(*name, *value));
        Trial {
            number: TrialNumber(number),
            params: Default::default(),
            state: TrialState::Complete { metrics },
        }
    }

    fn confirmed(number: u64, throughput: [f64; 2]) -> (TrialNumber, BTreeMap<String, Confirmed>) {
        let value = Confirmed::of(THROUGHPUT, &throughput).expect("values");
        (TrialNumber(number), [(THROUGHPUT.to_owned(), value)].into())
    }

    fn next(history: &[Trial], confirmations: &Confirmations, plan: &ConfirmPlan) -> Option<TrialNumber> {
        let finalists = Finalists {
            problem: &problem(&[THROUGHPUT]),
            history,
            confirmations,
            given_up: &[],
            loss_noise: None,
        };
        next_trial(&finalists, plan)
    }

    #[test]
    fn whatever_is_recommended_in_the_end_is_confirmed() {
        let history = [trial(0, &[(THROUGHPUT, 110.0)]), trial(1, &[(THROUGHPUT, 100.0)])];
        assert_eq!(next(&history, &[].into(), &PLAN), Some(TrialNumber(0)));
        // Repeats take the first place away: the limit of one trial does not keep the new one from being confirmed.
        let known: Confirmations = [confirmed(0, [90.0, 90.0])].into();
        assert_eq!(next(&history, &known, &PLAN), Some(TrialNumber(1)));
        let known: Confirmations = [confirmed(0, [90.0, 90.0]), confirmed(1, [100.0, 100.0])].into();
        assert_eq!(next(&history, &known, &PLAN), None);
    }

    #[test]
    fn a_throughput_that_is_known_well_enough_is_repeated_only_where_it_could_change_the_choice() {
        let interval = &*interval_of(THROUGHPUT);
        let next_of_steps = |steps: f64, own: f64, rival: f64| {
            let history = [
                trial(0, &[(THROUGHPUT, 100.0), (interval, own), (MEASURED_STEPS, steps)]),
                trial(1, &[(THROUGHPUT, rival), (interval, 0.003)]),
            ];
            next(&history, &[].into(), &PLAN)
        };
        let next_of = |own: f64, rival: f64| next_of_steps(5.0, own, rival);
        assert_eq!(next_of(0.003, 90.0), None);
        assert_eq!(
            next_of_steps(1.0, 0.0, 90.0),
            Some(TrialNumber(0)),
            "one step has no range"
        );
        assert_eq!(next_of(0.003, 99.9), None, "what could be gained is negligible");
        assert_eq!(next_of(0.02, 99.9), Some(TrialNumber(0)));
        assert_eq!(next_of(0.05, 50.0), Some(TrialNumber(0)), "not known to 2%");
        let mut slowed = trial(0, &[(THROUGHPUT, 100.0), (interval, 0.003)]);
        peft_tune_core::study::mark_disturbed(slowed.state.metrics_mut().unwrap(), 0.3);
        assert_eq!(next(&[slowed], &[].into(), &PLAN), Some(TrialNumber(0)));
    }

    #[test]
    fn rivals_within_the_noise_are_confirmed_as_far_as_the_limit_allows() {
        let speeds = [(0, 101.0), (1, 100.0), (2, 50.0)];
        let interval = &*interval_of(THROUGHPUT);
        let history = speeds.map(|(number, speed)| trial(number, &[(THROUGHPUT, speed), (interval, 0.04)]));
        let known: Confirmations = [confirmed(0, [101.0, 101.0])].into();
        let next = |trials| next(&history, &known, &ConfirmPlan { trials, ..PLAN });
        assert_eq!((next(1), next(2)), (None, Some(TrialNumber(1))));
    }

    #[test]
    fn whose_loss_lies_within_the_noise_is_a_finalist() {
        // 0 is the fastest within 1% of trial 1's loss. Of the faster ones, 2 may be within it, 3 cannot be.
        let rows = [(0, 100.0, 2.01), (1, 50.0, 2.0), (2, 200.0, 2.03), (3, 300.0, 2.2)];
        let history = rows.map(|(number, speed, loss)| trial(number, &[(THROUGHPUT, speed), (LOSS, loss)]));
        let numbers = |loss_noise| {
            let finalists = Finalists {
                problem: &problem(&[THROUGHPUT, LOSS]),
                history: &history,
                confirmations: &Confirmations::new(),
                given_up: &[],
                loss_noise,
            };
            finalists.numbers().iter().map(|number| number.0).collect::<Vec<_>>()
        };
        assert_eq!(numbers(None), [0]);
        assert_eq!(numbers(Some(0.01)), [0, 1, 2]);
    }
}
