//! The reference point of the hypervolume, and the trials that say most of a front by it.

use super::history::{Evaluated, evaluated, pareto_front};
use super::hypervolume::greedy_subset;
use super::learning::loss_after_learning;
use super::{Problem, pareto};
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::Trial;

/// The part of the best trial's gain in loss below which a trial is worth nothing to a search.
const USEFUL_SHARE: f64 = 0.75;

/// Trials of the Pareto front that together say most about it, at most `count`: each adds most hypervolume to those
/// before.
pub fn most_telling<'a>(problem: &Problem, history: &'a [Trial], count: usize) -> Vec<&'a Trial> {
    let front = pareto_front(problem, history);
    let values: Vec<&[f64]> = front.iter().map(|one| one.values.as_slice()).collect();
    let chosen = greedy_subset(&values, &reference_point(problem, &evaluated(problem, history)), count);
    chosen.into_iter().map(|index| front[index].trial).collect()
}

/// The reference point of the hypervolume, minimised: the objective's own where it has one; for the loss that of a trial
/// which learns three quarters of what the best one learns, where that is known; else the worst value of the Pareto front
/// plus a tenth of the front's span (of all values' span where the front is flat). Points beyond a reference that is given
/// or known do not decide the others.
///
/// Design note: the last is the rule of BoTorch's `infer_reference_point`; a reference taken from the worst trial of all
/// would let one diverged loss decide how much the ends of the front count. For a loss even the front's worst is too lax:
/// whatever trains fast is on the front, however little it learns, and a search that is paid for such settings finds them.
pub fn reference_point(problem: &Problem, complete: &[Evaluated<'_>]) -> Vec<f64> {
    let useful_loss = loss_after_learning(problem, complete, USEFUL_SHARE);
    let objectives = problem.objectives.iter();
    let known: Vec<Option<f64>> = objectives
        .map(|objective| match objective.reference {
            Some(reference) => Some(objective.minimised(reference)),
            None => useful_loss.filter(|_| objective.metric == LOSS),
        })
        .collect();
    let feasible: Vec<&[f64]> = complete
        .iter()
        .filter(|one| one.is_feasible())
        .map(|one| one.values.as_slice())
        .collect();
    let counts = |point: &[f64]| {
        point
            .iter()
            .zip(&known)
            .all(|(value, most)| most.is_none_or(|most| *value <= most))
    };
    let counting: Vec<&[f64]> = feasible.iter().copied().filter(|point| counts(point)).collect();
    let values = if counting.is_empty() { feasible } else { counting };
    let known = known.into_iter().enumerate();
    known
        .map(|(index, known)| known.unwrap_or_else(|| beyond_the_front(&values, index)))
        .collect()
}

/// The worst value of one objective on the Pareto front of `values`, plus a tenth of the front's span.
fn beyond_the_front(values: &[&[f64]], objective: usize) -> f64 {
    let span = |of: &mut dyn Iterator<Item = f64>| {
        of.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let front = pareto::front(values);
    let (low, high) = span(&mut front.iter().map(|index| values[*index][objective]));
    let (all_low, all_high) = span(&mut values.iter().map(|point| point[objective]));
    let width = [high - low, all_high - all_low, high.abs(), 1.0]
        .into_iter()
        .find(|width| *width > 0.0 && width.is_finite());
    if high.is_finite() {
        high + 0.1 * width.unwrap_or(1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, problem, trial};
    use peft_tune_core::objective::{Direction, LOSS_BEFORE, Objective};
    use peft_tune_core::study::{Metrics, Params, TrialState};

    #[test]
    fn the_most_telling_trials_cover_the_front() {
        let problem = problem(continuous_space(1), 2);
        // A knee, two ends, and neighbours of the knee that add next to nothing; the last is dominated.
        let rows = [
            [0.29, 0.31],
            [0.3, 0.3],
            [0.31, 0.29],
            [0.0, 1.0],
            [1.0, 0.0],
            [0.5, 0.5],
        ];
        let rows = rows.iter().enumerate();
        let history: Vec<Trial> = rows.map(|(number, row)| complete(number, Params::new(), row)).collect();
        let numbers = |count| -> Vec<u64> {
            let chosen = most_telling(&problem, &history, count);
            chosen.iter().map(|trial| trial.number.0).collect()
        };
        let mut three = numbers(3);
        assert_eq!(three[0], 1);
        three.sort_unstable();
        assert_eq!(three, [1, 3, 4]);
        assert_eq!(numbers(9).len(), 5);
    }

    #[test]
    fn a_reference_is_taken_over_or_inferred_from_the_front() {
        let mut problem = problem(continuous_space(1), 2);
        problem.objectives[0].direction = Direction::Maximize;
        problem.objectives[0].reference = Some(2.0);
        problem.objectives[1].reference = None;
        let trials = |rows: &[[f64; 2]]| -> Vec<Trial> {
            let rows = rows.iter().enumerate();
            rows.map(|(number, row)| complete(number, Params::new(), row)).collect()
        };
        let history = trials(&[[5.0, 1.0], [6.0, 2.0], [4.0, 50.0]]);
        assert_eq!(reference_point(&problem, &evaluated(&problem, &history)), [-2.0, 2.1]);
        assert_eq!(reference_point(&problem, &[]), [-2.0, 0.0]);
        // What lies beyond the first objective's reference has no say in the second's.
        let history = trials(&[[5.0, 1.0], [6.0, 2.0], [1.0, 0.5]]);
        assert_eq!(reference_point(&problem, &evaluated(&problem, &history)), [-2.0, 2.1]);
    }

    #[test]
    fn a_loss_counts_where_three_quarters_of_the_best_gain_are_reached() {
        let mut problem = problem(continuous_space(1), 2);
        problem.objectives = ["seconds", LOSS].map(Objective::new).into();
        let row = |number, seconds: f64, loss: f64, before: Option<f64>| {
            let mut metrics: Metrics = [("seconds", seconds), (LOSS, loss)].into();
            if let Some(before) = before {
                metrics.insert(LOSS_BEFORE, before);
            }
            trial(number, Params::new(), TrialState::Complete { metrics })
        };
        let history: Vec<Trial> = [(9.0, 2.0), (5.0, 3.0), (1.0, 5.9)]
            .into_iter()
            .enumerate()
            .map(|(number, (seconds, loss))| row(number, seconds, loss, Some(6.0)))
            .collect();
        let [seconds, loss] = reference_point(&problem, &evaluated(&problem, &history))[..] else {
            panic!("two objectives have two references");
        };
        assert!(
            (loss - 3.0).abs() < 1e-12 && (seconds - 9.4).abs() < 1e-12,
            "{loss} {seconds}"
        );
        // Trials that do not say where they began, as a command's, are taken as they are.
        let unknown = [row(0, 9.0, 2.0, None), row(1, 1.0, 5.9, None)];
        assert!(reference_point(&problem, &evaluated(&problem, &unknown))[1] > 5.9);
    }
}
