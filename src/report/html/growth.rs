//! How the front grew: the hypervolume after each trial.

use std::collections::BTreeMap;

use super::view::{Growth, GrowthPoint};
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Problem, evaluated, hypervolume_history, reference_point};

/// Objectives above which the exact hypervolume of large fronts takes too long for a page.
const MOST_OBJECTIVES: usize = 4;

/// Hypervolume after each trial that changed it, and after the last one, as `show` and `explain` say it. `None` while it is 0,
/// and with more than four objectives.
pub(super) fn growth(
    objectives: &[Objective],
    constraints: &[Constraint],
    trials: &[Trial],
    wall_s: &BTreeMap<TrialNumber, f64>,
) -> Option<Growth> {
    if objectives.is_empty() || objectives.len() > MOST_OBJECTIVES {
        return None;
    }
    let problem = Problem {
        space: SearchSpace::default(),
        objectives: objectives.to_vec(),
        constraints: constraints.to_vec(),
    };
    let volumes = hypervolume_history(&problem, trials);
    let whole = volumes
        .last()
        .copied()
        .filter(|whole| *whole > 0.0 && whole.is_finite())?;
    let mut points: Vec<GrowthPoint> = Vec::new();
    let mut elapsed_s = 0.0;
    let mut finished = trials
        .iter()
        .zip(volumes)
        .filter(|(trial, _)| trial.state.is_finished())
        .peekable();
    while let Some((trial, volume)) = finished.next() {
        elapsed_s += wall_s.get(&trial.number).copied().unwrap_or(0.0);
        let before = points.last().map_or(0.0, |point| point.volume);
        if volume > before || finished.peek().is_none() {
            points.push(GrowthPoint {
                trial: trial.number.0,
                elapsed_s,
                volume,
                share: volume / whole,
            });
        }
    }
    let reference = reference_point(&problem, &evaluated(&problem, trials));
    Some(Growth {
        reference: objectives
            .iter()
            .zip(&reference)
            .map(|(one, value)| one.minimised(*value))
            .collect(),
        points,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::{LOSS, THROUGHPUT};
    use peft_tune_core::study::TrialState;

    fn study(rows: &[(f64, f64)]) -> (Vec<Objective>, Vec<Trial>, BTreeMap<TrialNumber, f64>) {
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
        let wall_s = (0..rows.len() as u64).map(|number| (TrialNumber(number), 2.0));
        (objectives, trials.collect(), wall_s.collect())
    }

    #[test]
    fn the_share_grows_only_where_the_front_does() {
        let (objectives, trials, wall_s) = study(&[(10.0, 3.0), (5.0, 3.5), (20.0, 2.0), (1.0, 3.0)]);
        let growth = growth(&objectives, &[], &trials, &wall_s).unwrap();
        let seen: Vec<_> = growth
            .points
            .iter()
            .map(|point| (point.trial, point.elapsed_s))
            .collect();
        assert_eq!(seen, [(0, 2.0), (2, 6.0), (3, 8.0)]);
        // The first front holds 10 tokens/s by 1 nat of the last one's 20 by 2.
        let shares: Vec<(f64, f64)> = growth.points.iter().map(|point| (point.volume, point.share)).collect();
        assert_eq!(shares, [(10.0, 0.25), (40.0, 1.0), (40.0, 1.0)]);
        assert_eq!(growth.reference, [0.0, 4.0]);
    }

    #[test]
    fn nothing_is_drawn_without_a_complete_trial() {
        let (objectives, _, _) = study(&[]);
        assert_eq!(growth(&objectives, &[], &[], &BTreeMap::new()), None);
    }
}
