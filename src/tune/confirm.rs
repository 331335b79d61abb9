//! Making sure of a recommendation: the recommended trial, and those that noise could put in its place, are run again and
//! longer until the values that decide are known well enough.

use std::collections::BTreeMap;

use super::decide::whole_task;
use super::reported::needed;
use super::tuner::POLL;
use super::{TuneError, Tuner};
use crate::space::Study;
use crate::worker::{Task, TrialEvent, TrialRequest};
use peft_tune_core::objective::{Objective, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{
    Confirmed, MeasurePlan, Metrics, Trial, TrialNumber, TrialPlan, TrialState, disturbed, with_confirmed,
};
use peft_tune_search::{Preference, Problem, recommend};

/// Relative noise of a metric that does not say its own.
const USUAL_NOISE: f64 = 0.02;

/// What repeats say, by trial and metric.
type Confirmations = BTreeMap<TrialNumber, BTreeMap<String, Confirmed>>;

impl Tuner<'_> {
    /// Confirms the recommendation, if the study asks for that. What earlier runs repeated counts.
    pub(super) async fn confirm(&mut self) -> Result<(), TuneError> {
        let Some(plan) = self.parts.study.confirm else {
            return Ok(());
        };
        let mut repeats = self.parts.store.repeats(self.parts.id).await?;
        let mut confirmations = self.parts.store.confirmations(self.parts.id).await?;
        let mut given_up: Vec<TrialNumber> = Vec::new();
        let complete = self.history.iter().filter(|trial| trial.state.name() == "complete");
        let limit = plan.in_all.limit(complete.count() as u64);
        let mut done: u64 = repeats.values().map(|of_trial| of_trial.len() as u64).sum();
        while done < limit && !self.parts.interrupt.is_requested() {
            let Some(number) = next_trial(&self.problem, &self.history, (&confirmations, &given_up), &plan) else {
                break;
            };
            let of_trial = repeats.entry(number).or_default();
            let Some(metrics) = self.repeat(number, of_trial.len() as u64 + 1, &plan)? else {
                // A trial that fails when it is repeated keeps what was measured.
                given_up.push(number);
                continue;
            };
            of_trial.push(metrics);
            done += 1;
            // Quiet repeats count; where every other one is disturbed, there is an end to it too.
            if of_trial.len() as u64 >= 2 * plan.repeats {
                given_up.push(number);
            }
            let confirmed = summarised(&self.problem, of_trial);
            let (store, id, repeat) = (self.parts.store, self.parts.id, of_trial.len() as u64);
            let last = of_trial.last().cloned().unwrap_or_default();
            store.record_repeat(id, number, repeat, &last, &confirmed).await?;
            confirmations.insert(number, confirmed);
        }
        Ok(())
    }

    /// Runs a trial's params once more; `None` where that did not complete.
    fn repeat(&mut self, number: TrialNumber, repeat: u64, plan: &ConfirmPlan) -> Result<Option<Metrics>, TuneError> {
        let study = self.parts.study;
        // Repeats in another form of the ops would be no repeats.
        let trial = self.history.iter().find(|trial| trial.number == number);
        let trial = trial.filter(|trial| self.is_of_this_form(trial.number));
        let Some(task) = trial.and_then(|trial| task_of_repeat(study, trial, repeat, plan)) else {
            return Ok(None);
        };
        self.parts.observer.confirming(number, repeat);
        self.parts.evaluator.submit(TrialRequest {
            number,
            attempt: 1,
            task,
            memory_limit_bytes: study.memory_limit_bytes,
            time_limit_s: study.trial_timeout_s,
            assignments: Vec::new(),
        })?;
        loop {
            match self.parts.evaluator.next_event(POLL)? {
                Some(TrialEvent::Ended { state, wall_s, .. }) => {
                    self.spent_s += wall_s;
                    return Ok(match state {
                        TrialState::Complete { metrics } => Some(metrics),
                        _ => None,
                    });
                }
                Some(TrialEvent::Lost { wall_s, .. }) => {
                    self.spent_s += wall_s;
                    return Ok(None);
                }
                Some(event) => self.parts.observer.trial_event(&event),
                None if self.parts.interrupt.is_immediate() => return Ok(None),
                None => {}
            }
        }
    }
}

/// A longer profile phase, or the whole program with another seed.
fn task_of_repeat(study: &Study, trial: &Trial, repeat: u64, plan: &ConfirmPlan) -> Option<Task> {
    Some(match whole_task(study, &trial.params).ok()? {
        Task::Recipe { recipe, plan: whole } => {
            let warmup = whole.measure.as_ref().map(|measure| measure.max_warmup_steps);
            let measure = MeasurePlan {
                steps: plan.steps,
                max_warmup_steps: warmup.unwrap_or(0),
            };
            let plan = TrialPlan {
                measure: Some(measure),
                train: None,
            };
            Task::Recipe { recipe, plan }
        }
        Task::Params { params, seed, steps } => Task::Params {
            params,
            seed: seed.wrapping_add(repeat),
            steps,
        },
    })
}

/// What the repeats of one trial say of the metrics that decide.
fn summarised(problem: &Problem, repeats: &[Metrics]) -> BTreeMap<String, Confirmed> {
    // Repeats that something else slowed down count only where there is nothing better.
    let quiet: Vec<&Metrics> = repeats.iter().filter(|one| disturbed(one).is_none()).collect();
    let counting = if quiet.len() > 1 {
        quiet
    } else {
        repeats.iter().collect()
    };
    let values = |metric: &str| -> Vec<f64> { counting.iter().filter_map(|one| one.value(metric)).collect() };
    let metrics = needed(problem).into_iter();
    metrics
        .filter_map(|metric| Some((metric.to_owned(), Confirmed::of(metric, &values(metric))?)))
        .collect()
}

/// The trial to repeat next: the recommended one, then those that noise could put in its place; `None` when all that may be
/// confirmed are. A trial that others' repeats made the recommended one is confirmed however many were: the plan's limit is
/// for its rivals.
fn next_trial(
    problem: &Problem,
    history: &[Trial],
    (confirmations, given_up): (&Confirmations, &[TrialNumber]),
    plan: &ConfirmPlan,
) -> Option<TrialNumber> {
    let history = with_confirmed(history, confirmations);
    let recommended = recommend(problem, &history, &Preference::default()).ok()?.trial.number;
    let open = |number: &TrialNumber| {
        let begun = confirmations.contains_key(number) || (confirmations.len() as u64) < plan.trials;
        let begun = begun || *number == recommended;
        let settled = confirmations.get(number).is_some_and(|known| is_settled(known, plan));
        begun && !settled && !given_up.contains(number)
    };
    let mut candidates = vec![recommended];
    candidates.extend(rivals(problem, &history, recommended, confirmations));
    candidates.into_iter().find(open)
}

/// Whether a trial's repeats are enough: the interval is narrow, or there are as many as there may be.
fn is_settled(confirmed: &BTreeMap<String, Confirmed>, plan: &ConfirmPlan) -> bool {
    let noisy = confirmed.iter().filter(|(metric, _)| *metric != PEAK_MEMORY);
    let values: Vec<&Confirmed> = noisy.map(|(_, one)| one).collect();
    let repeated = confirmed.values().map(|one| one.repeats).max().unwrap_or(0);
    repeated >= plan.repeats || (repeated > 1 && values.iter().all(|one| one.interval <= plan.interval))
}

/// Complete trials that would be recommended if they were as much better, and the recommended one as much worse, as noise
/// allows.
fn rivals(
    problem: &Problem,
    history: &[Trial],
    recommended: TrialNumber,
    confirmations: &Confirmations,
) -> Vec<TrialNumber> {
    let complete = history.iter().filter(|trial| trial.number != recommended);
    let complete = complete.filter(|trial| matches!(trial.state, TrialState::Complete { .. }));
    complete
        .filter(|rival| {
            let mut shifted = history.to_vec();
            for trial in &mut shifted {
                let better = trial.number == rival.number;
                if better || trial.number == recommended {
                    shift(problem, trial, better, confirmations.get(&trial.number));
                }
            }
            recommend(problem, &shifted, &Preference::default()).is_ok_and(|chosen| chosen.trial.number == rival.number)
        })
        .map(|rival| rival.number)
        .collect()
}

/// Makes the noisy objectives of a trial as much better or worse as their noise allows.
fn shift(problem: &Problem, trial: &mut Trial, better: bool, confirmed: Option<&BTreeMap<String, Confirmed>>) {
    let TrialState::Complete { metrics } = &mut trial.state else {
        return;
    };
    for objective in problem
        .objectives
        .iter()
        .filter(|objective| is_noisy(problem, objective))
    {
        let Some(value) = metrics.value(&objective.metric) else {
            continue;
        };
        let repeated = confirmed
            .and_then(|known| known.get(&objective.metric))
            .filter(|one| one.repeats > 1);
        let own = metrics.value(&interval_of(&objective.metric));
        let noise = repeated.map(|one| one.interval).or(own).unwrap_or(USUAL_NOISE);
        let towards = if better { -1.0 } else { 1.0 };
        let minimised = objective.minimised(value);
        // A disturbance only takes away: it makes no value worse than it is.
        let only_slowed = !better && repeated.is_none() && disturbed(metrics).is_some();
        let noise = if only_slowed { noise.min(USUAL_NOISE) } else { noise };
        metrics.insert(
            objective.metric.clone(),
            objective.minimised(minimised + towards * noise * minimised.abs()),
        );
    }
}

/// Name of the metric that says how uncertain a measured `metric` is: half the width of its interval, as a share.
pub(super) fn interval_of(metric: &str) -> String {
    format!("{metric}_interval")
}

/// Whether repeats differ in an objective: the native engine's only in throughput, a command's may in any.
fn is_noisy(problem: &Problem, objective: &Objective) -> bool {
    objective.metric == THROUGHPUT || !problem.objectives.iter().any(|one| one.metric == THROUGHPUT)
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
    };

    fn problem() -> Problem {
        Problem {
            space: SearchSpace { parameters: Vec::new() },
            objectives: vec![Objective::new(THROUGHPUT)],
            constraints: Vec::new(),
        }
    }

    fn trial(number: u64, throughput: f64) -> Trial {
        Trial {
            number: TrialNumber(number),
            params: Default::default(),
            state: TrialState::Complete {
                metrics: [(THROUGHPUT, throughput)].into(),
            },
        }
    }

    fn confirmed(number: u64, throughput: [f64; 2]) -> (TrialNumber, BTreeMap<String, Confirmed>) {
        let value = Confirmed::of(THROUGHPUT, &throughput).expect("values");
        (TrialNumber(number), [(THROUGHPUT.to_owned(), value)].into())
    }

    #[test]
    fn whatever_is_recommended_in_the_end_is_confirmed() {
        let history = [trial(0, 110.0), trial(1, 100.0)];
        let next = |known: &Confirmations| next_trial(&problem(), &history, (known, &[]), &PLAN);
        assert_eq!(next(&[].into()), Some(TrialNumber(0)));
        // Repeats take the first place away: the limit of one trial does not keep the new one from being confirmed.
        let known: Confirmations = [confirmed(0, [90.0, 90.0])].into();
        assert_eq!(next(&known), Some(TrialNumber(1)));
        let known: Confirmations = [confirmed(0, [90.0, 90.0]), confirmed(1, [100.0, 100.0])].into();
        assert_eq!(next(&known), None);
    }

    #[test]
    fn rivals_within_the_noise_are_confirmed_as_far_as_the_limit_allows() {
        let history = [trial(0, 101.0), trial(1, 100.0), trial(2, 50.0)];
        let known: Confirmations = [confirmed(0, [101.0, 101.0])].into();
        let next = |trials| next_trial(&problem(), &history, (&known, &[]), &ConfirmPlan { trials, ..PLAN });
        assert_eq!((next(1), next(2)), (None, Some(TrialNumber(1))));
    }
}
