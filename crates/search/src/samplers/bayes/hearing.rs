//! A fair hearing for every choice: beside the best training, the same with another optimizer or other targets, at the learning
//! rate that is right for *it*.
//!
//! A model that met AdamW at Lion's learning rate takes it for worse everywhere, and a search that follows the model never
//! finds out: of ten searches of the quickstart one ended 4% above the others so. Therefore a choice is heard at the best training's
//! rate first, and then at rates below and above, until its best lies between two others or is beaten by too much.

use super::candidates::Candidates;
use super::observations::{Observations, Seen};
use super::trainings::Trainings;
use crate::Problem;
use crate::encode::Point;

/// Trainings before the first hearing: the best of fewer is not worth a comparison.
const BEFORE: usize = 24;
/// Trainings that one choice gets beside one best training.
const MOST: usize = 5;
/// Distance of two learning rates, as a share of their range where that is continuous.
const STEP: f64 = 0.18;
/// A choice is heard further whose loss is above the best by at most this share of what the median training is above it.
const NEAR: f64 = 0.25;

/// The training that a choice is owed next, as a candidate; `None` where all were heard.
pub(super) fn owed(
    problem: &Problem,
    observations: &Observations<'_>,
    (candidates, trainings): (&Candidates<'_>, &Trainings<'_>),
    is_tried: impl Fn(&Point) -> bool,
) -> Option<Point> {
    let loss = trainings.loss();
    let used = &observations.modelled[loss].used;
    let named = |index: &usize| problem.space.parameters[*index].name == "learning_rate";
    let rate = used.iter().copied().find(named)?;
    let seen: Vec<&Seen> = observations.seen.iter().filter(|seen| seen.feasible).collect();
    let best = seen.iter().min_by(|a, b| a.values[loss].total_cmp(&b.values[loss]))?;
    let mut losses: Vec<f64> = seen.iter().map(|seen| seen.values[loss]).collect();
    losses.sort_by(f64::total_cmp);
    let middle = losses[losses.len() / 2];
    let near = best.values[loss] + NEAR * (middle - best.values[loss]);
    let choices = used.iter().filter(|index| candidates.is_choice(**index));
    let rivals = choices.flat_map(|index| candidates.levels(*index).into_iter().map(|level| (*index, level)));
    let mut owed: Vec<(usize, Point)> = Vec::new();
    for (choice, level) in rivals {
        let mut point = best.point.clone();
        point[choice] = level;
        let is_its = |seen: &&&Seen| {
            let mut others = used.iter().filter(|index| **index != rate);
            others.all(|index| seen.point[*index] == point[*index])
        };
        let mut heard: Vec<(f64, f64)> = seen
            .iter()
            .filter(is_its)
            .map(|seen| (seen.point[rate], seen.values[loss]))
            .collect();
        heard.sort_by(|a, b| a.0.total_cmp(&b.0));
        heard.dedup_by(|a, b| a.0 == b.0);
        let Some(next) = next_rate(&heard, best.point[rate], near, &candidates.levels(rate)) else {
            continue;
        };
        point[rate] = next;
        if !is_tried(&point) {
            owed.push((heard.len(), point));
        }
    }
    let (_, point) = owed.into_iter().min_by_key(|(heard, _)| *heard)?;
    Some(point)
}

/// Whether so many trainings are enough to compare with the best.
pub(super) fn is_time(trainings: usize) -> bool {
    trainings >= BEFORE && trainings.is_multiple_of(4)
}

/// The next rate at which a choice is to be heard that was heard at these, in ascending order, with these losses. `levels` are those that
/// there are; none where the range is continuous.
fn next_rate(heard: &[(f64, f64)], usual: f64, near: f64, levels: &[f64]) -> Option<f64> {
    let (at, (rate, loss)) = match heard.iter().enumerate().min_by(|a, b| a.1.1.total_cmp(&b.1.1)) {
        None => return Some(usual),
        Some(found) => found,
    };
    if heard.len() >= MOST || *loss > near {
        return None;
    }
    let above = step(*rate, levels, true).filter(|_| at + 1 == heard.len());
    let below = step(*rate, levels, false).filter(|_| at == 0);
    above.or(below)
}

/// The rate beside another.
fn step(rate: f64, levels: &[f64], up: bool) -> Option<f64> {
    if levels.is_empty() {
        let next = if up { rate + STEP } else { rate - STEP };
        return (0.0..=1.0).contains(&next).then_some(next);
    }
    match up {
        true => levels
            .iter()
            .copied()
            .filter(|level| *level > rate)
            .min_by(f64::total_cmp),
        false => levels
            .iter()
            .copied()
            .filter(|level| *level < rate)
            .max_by(f64::total_cmp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_heard_until_its_best_rate_lies_between_two_others() {
        assert_eq!(next_rate(&[], 0.5, 1.0, &[]), Some(0.5));
        let next = next_rate(&[(0.5, 0.9)], 0.5, 1.0, &[]).unwrap();
        assert!((next - 0.68).abs() < 1e-12);
        // The higher one was worse: lower.
        let next = next_rate(&[(0.5, 0.9), (0.68, 0.95)], 0.5, 1.0, &[]).unwrap();
        assert!((next - 0.32).abs() < 1e-12);
        assert_eq!(
            next_rate(&[(0.32, 0.92), (0.5, 0.9), (0.68, 0.95)], 0.5, 1.0, &[]),
            None
        );
        // Beaten by too much.
        assert_eq!(next_rate(&[(0.5, 1.1)], 0.5, 1.0, &[]), None);
    }

    #[test]
    fn it_stays_within_the_range_and_among_the_levels() {
        assert_eq!(
            next_rate(&[(0.9, 0.9)], 0.9, 1.0, &[]).map(|rate| (rate * 100.0).round()),
            Some(72.0)
        );
        let levels = [0.1, 0.3, 0.9];
        assert_eq!(next_rate(&[(0.3, 0.9)], 0.3, 1.0, &levels), Some(0.9));
        assert_eq!(next_rate(&[(0.3, 0.9), (0.9, 1.0)], 0.3, 1.0, &levels), Some(0.1));
        assert_eq!(next_rate(&[(0.9, 0.5)], 0.9, 1.0, &levels), Some(0.3));
    }
}
