//! How the front grew: the hypervolume after each trial.

use super::input::Timing;
use super::view::{Growth, GrowthPoint};
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::Trial;
use peft_tune_search::{Problem, evaluated, hypervolume, reference_point};

/// Objectives above which the exact hypervolume of large fronts takes too long for a page.
const MOST_OBJECTIVES: usize = 4;

/// Hypervolume after each trial that changed it, and after the last one. `None` without a trial that counts, and with more
/// than four objectives.
///
/// The reference point is the study's own or the one that the search would take at the end, so that the one never
/// falls. Trials count in the order in which they ended.
pub fn growth(
    objectives: &[Objective],
    constraints: &[Constraint],
    trials: &[Trial],
    timings: &[Timing],
) -> Option<Growth> {
    if objectives.is_empty() || objectives.len() > MOST_OBJECTIVES {
        return None;
    }
    let problem = Problem {
        space: SearchSpace::default(),
        objectives: objectives.to_vec(),
        constraints: constraints.to_vec(),
    };
    let complete = evaluated(&problem, trials);
    let feasible: Vec<_> = complete.iter().filter(|one| one.is_feasible()).collect();
    let values: Vec<Vec<f64>> = feasible.iter().map(|one| one.values.clone()).collect();
    let reference = reference_point(&problem, &complete);
    let box_volume = box_volume(&values, &reference);
    if feasible.is_empty() || box_volume <= 0.0 || !box_volume.is_finite() {
        return None;
    }
    let mut points = Vec::new();
    let mut front: Vec<Vec<f64>> = Vec::new();
    let (mut elapsed_s, mut share) = (0.0, 0.0);
    for timing in in_order(timings) {
        elapsed_s += timing.wall_s;
        let found = feasible.iter().find(|one| one.trial.number.0 == timing.number);
        let Some(one) = found.filter(|one| adds(&one.values, &front, &reference)) else {
            continue;
        };
        front.retain(|other| !one.values.iter().zip(other).all(|(new, old)| new <= old));
        front.push(one.values.clone());
        share = (hypervolume(&front, &reference) / box_volume).clamp(share, 1.0);
        points.push(GrowthPoint {
            trial: timing.number,
            elapsed_s,
            share,
        });
    }
    let last = in_order(timings).last().map(|timing| timing.number)?;
    if points.last().is_some_and(|point| point.trial != last) {
        points.push(GrowthPoint {
            trial: last,
            elapsed_s,
            share,
        });
    }
    Some(Growth {
        reference: objectives
            .iter()
            .zip(&reference)
            .map(|(one, value)| one.minimised(*value))
            .collect(),
        points,
    })
}

/// Volume between the best value of each objective and the reference point.
fn box_volume(values: &[Vec<f64>], reference: &[f64]) -> f64 {
    let side = |(objective, limit): (usize, &f64)| {
        let best = values
            .iter()
            .map(|point| point[objective])
            .fold(f64::INFINITY, f64::min);
        limit - best
    };
    reference
        .iter()
        .enumerate()
        .map(side)
        .map(|side| side.max(0.0))
        .product()
}

/// Whether a point lies inside the reference point and no point of the front is at least as good everywhere.
fn adds(point: &[f64], front: &[Vec<f64>], reference: &[f64]) -> bool {
    let inside = point.iter().zip(reference).all(|(value, limit)| value < limit);
    inside
        && !front
            .iter()
            .any(|other| other.iter().zip(point).all(|(old, new)| old <= new))
}

/// Ended trials in the order in which they ended.
fn in_order(timings: &[Timing]) -> impl Iterator<Item = &Timing> {
    let mut ended: Vec<&Timing> = timings.iter().filter(|timing| !timing.ended_at.is_empty()).collect();
    ended.sort_by(|a, b| a.ended_at.cmp(&b.ended_at).then(a.number.cmp(&b.number)));
    ended.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::{LOSS, THROUGHPUT};
    use peft_tune_core::study::{TrialNumber, TrialState};

    fn study(rows: &[(f64, f64)]) -> (Vec<Objective>, Vec<Trial>, Vec<Timing>) {
        let mut objectives = vec![Objective::new(THROUGHPUT), Objective::new(LOSS)];
        objectives[0].reference = Some(0.0);
        objectives[1].reference = Some(4.0);
        let trials = rows.iter().zip(0..).map(|((throughput, loss), number)| Trial {
            number: TrialNumber(number),
            params: Default::default(),
            state: TrialState::Complete {
                metrics: [(THROUGHPUT, *throughput), (LOSS, *loss)].into(),
            },
        });
        let timings = (0..rows.len() as u64).map(|number| Timing {
            number,
            ended_at: format!("2026-01-01T00:00:{number:02}Z"),
            wall_s: 2.0,
        });
        (objectives, trials.collect(), timings.collect())
    }

    #[test]
    fn the_share_grows_only_where_the_front_does() {
        let (objectives, trials, timings) = study(&[(10.0, 3.0), (5.0, 3.5), (20.0, 2.0), (1.0, 3.0)]);
        let growth = growth(&objectives, &[], &trials, &timings).unwrap();
        let seen: Vec<_> = growth
            .points
            .iter()
            .map(|point| (point.trial, point.elapsed_s))
            .collect();
        assert_eq!(seen, [(0, 2.0), (2, 6.0), (3, 8.0)]);
        // Box: 20 tokens/s by 2 nats; the first front holds 10 by 1 of it.
        let shares: Vec<f64> = growth.points.iter().map(|point| point.share).collect();
        assert_eq!(shares, [0.25, 1.0, 1.0]);
        assert_eq!(growth.reference, [0.0, 4.0]);
    }

    #[test]
    fn nothing_is_drawn_without_a_complete_trial() {
        let (objectives, _, _) = study(&[]);
        assert_eq!(growth(&objectives, &[], &[], &[]), None);
    }
}
