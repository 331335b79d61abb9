//! Hypervolume over the trials of a study, and the rule that ends a study which has found what it will find.

use super::history::evaluated;
use super::reference_point::reference_point;
use super::{Problem, hypervolume};
use peft_tune_core::space::StopRule;
use peft_tune_core::study::Trial;

/// Hypervolume of the feasible trials after each trial of the history: what every command, page and rule calls so. The
/// reference point is the same throughout: the objectives' own, or inferred from the whole history ([`reference_point`]).
pub fn hypervolume_history(problem: &Problem, history: &[Trial]) -> Vec<f64> {
    let all = evaluated(problem, history);
    let reference = reference_point(problem, &all);
    let mut met = all.iter().peekable();
    let mut front: Vec<&[f64]> = Vec::new();
    let mut volume = 0.0;
    let after = |trial: &Trial| {
        let one = met.next_if(|one| one.trial.number == trial.number);
        if let Some(one) = one.filter(|one| one.is_feasible() && adds(&one.values, &front, &reference)) {
            front.retain(|other| !one.values.iter().zip(*other).all(|(new, old)| new <= old));
            front.push(&one.values);
            volume = hypervolume(&front, &reference).max(volume);
        }
        volume
    };
    history.iter().map(after).collect()
}

/// Whether a point lies inside the reference point and no point of the front is at least as good everywhere.
fn adds(point: &[f64], front: &[&[f64]], reference: &[f64]) -> bool {
    let inside = point.iter().zip(reference).all(|(value, limit)| value < limit);
    let covers = |other: &&[f64]| other.iter().zip(point).all(|(old, new)| old <= new);
    inside && !front.iter().any(covers)
}

/// Why a study should stop, or `None` where it should continue. `volumes` is the hypervolume after each trial,
/// `expected` what each was expected to add when it was proposed, `None` for those of an initial design.
///
/// A sampler that expects something is asked: the study ends when the last `patience` proposals expected too little each.
/// Any other is judged by what came: the study ends when the last `patience` trials together brought too little.
pub fn stop_reason(rule: &StopRule, volumes: &[f64], expected: &[Option<f64>]) -> Option<String> {
    let patience = usize::try_from(rule.patience).ok().filter(|patience| *patience > 0)?;
    let volume = *volumes.last()?;
    if volume <= 0.0 || volumes.len() <= patience {
        return None;
    }
    let share = |gain: f64| format!("{:.4}%", 100.0 * gain);
    let last = &expected[expected.len().saturating_sub(patience)..];
    if expected.iter().any(Option::is_some) {
        let gains: Vec<f64> = last.iter().copied().collect::<Option<_>>()?;
        let most = gains.into_iter().fold(0.0, f64::max) / volume;
        return (most < rule.least_gain).then(|| {
            format!(
                "the last {patience} proposals expected at most {} more hypervolume each, below {}",
                share(most),
                share(rule.least_gain)
            )
        });
    }
    let gain = (volume - volumes[volumes.len() - 1 - patience]) / volume;
    (gain < rule.least_gain).then(|| {
        format!(
            "the last {patience} trials added {} to the hypervolume, below {}",
            share(gain),
            share(rule.least_gain)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, out_of_memory, problem, trial};
    use peft_tune_core::study::Params;

    #[test]
    fn the_history_rises_with_each_trial_that_improves_the_front() {
        let problem = problem(continuous_space(1), 2);
        let history = [
            complete(0, Params::new(), &[0.6, 0.6]),
            trial(1, Params::new(), out_of_memory()),
            complete(2, Params::new(), &[0.1, 1.0]),
            complete(3, Params::new(), &[0.7, 0.7]),
        ];
        let volumes = hypervolume_history(&problem, &history);
        let expected = [0.25, 0.25, 0.3, 0.3];
        for (volume, expected) in volumes.iter().zip(expected) {
            assert!((volume - expected).abs() < 1e-12, "{volumes:?}");
        }
    }

    #[test]
    fn it_stops_after_enough_hopeless_proposals_in_a_row() {
        let rule = StopRule {
            least_gain: 0.01,
            patience: 3,
        };
        let small = Some(0.001);
        let reason =
            |volume: f64, expected: &[Option<f64>]| stop_reason(&rule, &vec![volume; expected.len()], expected);
        assert_eq!(reason(1.0, &[None, small, small]), None);
        assert_eq!(reason(1.0, &[None, None, small, small]), None);
        assert_eq!(reason(1.0, &[None, small, Some(0.02), small]), None);
        assert_eq!(reason(0.0, &[None, small, small, small]), None);
        assert_eq!(
            reason(1.0, &[Some(0.5), small, Some(0.002), small]).unwrap(),
            "the last 3 proposals expected at most 0.2000% more hypervolume each, below 1.0000%"
        );
    }

    #[test]
    fn without_expectations_it_stops_when_nothing_comes_any_more() {
        let rule = StopRule {
            least_gain: 0.01,
            patience: 2,
        };
        assert_eq!(stop_reason(&rule, &[0.5, 0.9, 1.0], &[None; 3]), None);
        assert_eq!(stop_reason(&rule, &[1.0, 1.0], &[None; 2]), None);
        assert_eq!(
            stop_reason(&rule, &[0.5, 1.0, 1.0, 1.005], &[None; 4]).unwrap(),
            "the last 2 trials added 0.4975% to the hypervolume, below 1.0000%"
        );
    }
}
