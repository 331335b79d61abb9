//! What ten more minutes would bring: what the last ones brought, and what the model expects of its next proposals.

use serde::Serialize;

use super::input::AnswersInput;
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::Trial;
use peft_tune_search::{Problem, evaluated, hypervolume_history};

/// The time that is asked about, in seconds.
pub(super) const ASKED_S: f64 = 600.0;
/// Trials whose cost says what the next will cost: the latest ones.
const LATEST: usize = 12;
/// What each further proposal is worth of the one before it, at most: gains fall.
const MOST_LASTING: f64 = 0.95;

/// Ten more minutes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoreTime {
    /// Seconds asked about.
    pub seconds: f64,
    /// Seconds of a trial: the mean of the latest ones, one after another.
    pub trial_s: f64,
    /// Trials that fit.
    pub trials: u64,
    /// What the latest trials of about that time brought.
    pub recent: Option<RecentGain>,
    /// What the model expects; `None` where it proposes nothing.
    pub expected: Option<ExpectedGain>,
}

/// What came of the latest trials.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RecentGain {
    pub trials: usize,
    /// Wall-clock seconds that they took.
    pub seconds: f64,
    /// Gain that the latest trials brought to the hypervolume, as a share of it now.
    pub hypervolume: f64,
    /// Nats that the latest trials took off the best loss.
    pub loss: Option<f64>,
}

/// What further trials are expected to add to the hypervolume, as shares of it now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedGain {
    /// Gains of each proposal, the first one first.
    pub proposals: Vec<f64>,
    /// Gain of all trials that fit, taken to fall as the proposals do: a guess.
    pub all: f64,
}

/// Ten more minutes; `None` before a trial that took time.
pub(super) fn more_time(input: &AnswersInput<'_>) -> Option<MoreTime> {
    let finished: Vec<Trial> = input
        .trials
        .iter()
        .filter(|trial| trial.state.is_finished())
        .cloned()
        .collect();
    let seconds: Vec<f64> = finished
        .iter()
        .map(|trial| input.wall_s.get(&trial.number).copied().unwrap_or(0.0))
        .collect();
    // What a variant costs says nothing of a training.
    let trainings = finished
        .iter()
        .zip(&seconds)
        .filter(|(trial, _)| !input.variants.contains_key(&trial.number));
    let took: Vec<f64> = trainings
        .map(|(_, seconds)| *seconds)
        .filter(|seconds| *seconds > 0.0)
        .collect();
    let latest = &took[took.len().saturating_sub(LATEST)..];
    let trial_s = latest.iter().sum::<f64>() / latest.len().max(1) as f64;
    if trial_s <= 0.0 {
        return None;
    }
    let trials = ((ASKED_S / trial_s) as u64).max(1);
    let volumes = hypervolume_history(input.problem, &finished);
    let now = volumes.last().copied().filter(|now| *now > 0.0);
    Some(MoreTime {
        seconds: ASKED_S,
        trial_s,
        trials,
        recent: now.and_then(|now| recent(input.problem, &finished, &seconds, &volumes, now)),
        expected: now.and_then(|now| expected(input, trials, now)),
    })
}

/// The latest trials that took ten minutes together, or the later half of a shorter study.
fn recent(problem: &Problem, trials: &[Trial], seconds: &[f64], volumes: &[f64], now: f64) -> Option<RecentGain> {
    let whole: f64 = seconds.iter().sum();
    let asked = ASKED_S.min(whole / 2.0);
    let mut spent = 0.0;
    let back = seconds.iter().rev().take_while(|seconds| {
        let goes_on = spent < asked;
        spent += if goes_on { **seconds } else { 0.0 };
        goes_on
    });
    let count = back.count();
    let before = trials.len().checked_sub(count).filter(|before| *before > 0)?;
    let best = |trials: &[Trial]| {
        let index = problem.objectives.iter().position(|one| one.metric == LOSS)?;
        let feasible = evaluated(problem, trials).into_iter().filter(|one| one.is_feasible());
        feasible.map(|one| one.values[index]).min_by(f64::total_cmp)
    };
    Some(RecentGain {
        trials: count,
        seconds: seconds[before..].iter().sum(),
        hypervolume: (now - volumes[before - 1]) / now,
        loss: best(&trials[..before])
            .zip(best(trials))
            .map(|(before, now)| before - now),
    })
}

fn expected(input: &AnswersInput<'_>, trials: u64, now: f64) -> Option<ExpectedGain> {
    let proposals: Vec<f64> = input
        .next
        .iter()
        .map_while(|one| one.expected_improvement)
        .map(|gain| gain / now)
        .collect();
    let first = *proposals.first()?;
    let last = *proposals.last()?;
    let steps = proposals.len() as f64 - 1.0;
    let lasting = match first > 0.0 && steps > 0.0 {
        true => (last / first).powf(1.0 / steps).min(MOST_LASTING),
        false => 0.5,
    };
    let known = usize::try_from(trials).unwrap_or(usize::MAX).min(proposals.len());
    let beyond = trials.saturating_sub(known as u64);
    let tail = last * lasting * (1.0 - lasting.powf(beyond as f64)) / (1.0 - lasting);
    let all = proposals[..known].iter().sum::<f64>() + if beyond > 0 { tail } else { 0.0 };
    Some(ExpectedGain { proposals, all })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{number, study};
    use super::*;
    use peft_tune_search::Proposal;

    #[test]
    fn ten_minutes_are_counted_in_trials_and_in_gains() {
        let params = [(4, 0.5), (8, 0.5), (16, 0.5), (16, 0.4), (16, 0.3), (16, 0.6)];
        let mut case = study(&params, |rank, rate| [100.0, 3.0 - number(rank) / 16.0 + number(rate)]);
        case.problem.objectives[0].reference = Some(0.0);
        case.problem.objectives[1].reference = Some(4.0);
        let one = case.with(|input| more_time(&input)).unwrap();
        assert_eq!((one.trial_s, one.trials), (10.0, 60));
        // The later half of a minute: the best loss fell from 2.5 to 2.3, of 4.
        let recent = one.recent.unwrap();
        assert_eq!((recent.trials, recent.seconds), (3, 30.0));
        assert!((recent.loss.unwrap() - 0.2).abs() < 1e-9);
        assert!((recent.hypervolume - 0.2 / 1.7).abs() < 1e-9, "{recent:?}");
        assert_eq!(one.expected, None);
    }

    #[test]
    fn what_the_model_expects_falls_and_is_bounded() {
        let mut case = study(&[(4, 0.5), (8, 0.5)], |_, _| [100.0, 2.0]);
        case.problem.objectives[0].reference = Some(0.0);
        case.problem.objectives[1].reference = Some(4.0);
        let proposal = |gain: f64| Proposal {
            params: Default::default(),
            log_acquisition: None,
            expected_improvement: Some(gain),
            predicted: Vec::new(),
            tests_predictions: false,
        };
        // A hypervolume of 200: 2%, then half of it each.
        case.next = vec![proposal(4.0), proposal(2.0)];
        let expected = case.with(|input| more_time(&input)).unwrap().expected.unwrap();
        assert_eq!(expected.proposals, [0.02, 0.01]);
        assert!((expected.all - 0.04).abs() < 1e-6, "{expected:?}");
    }
}
