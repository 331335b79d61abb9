//! Whether trials can tell a parameter from what it went with: a surrogate divides a difference between two parameters that
//! always changed together as it likes, and is sure of it.
//!
//! y is 1 for trials near the parameter's best value and -1 for those near its worst; x are the coordinates of all other
//! parameters, choices as one column each. R^2 of a ridge regression of y on x is the share of the parameter that the others
//! give away.

use crate::encode::{Axis, Point};

/// Share of the parameter that the others may give away.
const MOST_SHARED: f64 = 0.85;
/// Trials that each of the two values must have.
const LEAST_EACH: usize = 2;
/// Ridge of the regression, in trials: few trials with many parameters explain anything.
const RIDGE: f64 = 0.5;

/// Whether trials at `points` tell the values at coordinates `best` and `worst` of parameter `index` apart from everything
/// that went with them.
pub(super) fn tells_apart(axes: &[Axis], points: &[Point], index: usize, best: f64, worst: f64) -> bool {
    let side = |point: &&Point| {
        let (to_best, to_worst) = (
            axes[index].square(point[index], best),
            axes[index].square(point[index], worst),
        );
        match to_best.partial_cmp(&to_worst) {
            Some(std::cmp::Ordering::Less) => Some(1.0),
            Some(std::cmp::Ordering::Greater) => Some(-1.0),
            _ => None,
        }
    };
    let sided: Vec<(&Point, f64)> = points.iter().filter_map(|point| Some((point, side(&point)?))).collect();
    let of = |sign: f64| sided.iter().filter(|(_, side)| *side == sign).count();
    if of(1.0) < LEAST_EACH || of(-1.0) < LEAST_EACH {
        return false;
    }
    let rows: Vec<Vec<f64>> = sided.iter().map(|(point, _)| columns(axes, point, index)).collect();
    let sides: Vec<f64> = sided.iter().map(|(_, side)| *side).collect();
    explained(&rows, &sides) < MOST_SHARED
}

/// The coordinates of a point without parameter `index`.
fn columns(axes: &[Axis], point: &Point, index: usize) -> Vec<f64> {
    let mut row = Vec::new();
    for (axis, coordinate) in axes
        .iter()
        .zip(point)
        .enumerate()
        .filter(|(own, _)| *own != index)
        .map(|(_, pair)| pair)
    {
        match axis {
            Axis::Number => row.push(*coordinate),
            Axis::Choice { choices, .. } => {
                row.extend((0..*choices).map(|choice| f64::from(u8::from(*coordinate == choice as f64))));
            }
        }
    }
    row
}

/// R^2 of a ridge regression of `values` on `rows`, both centred.
fn explained(rows: &[Vec<f64>], values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let width = rows.first().map_or(0, Vec::len);
    let mean = values.iter().sum::<f64>() / count;
    let means: Vec<f64> = (0..width)
        .map(|column| rows.iter().map(|row| row[column]).sum::<f64>() / count)
        .collect();
    let centred: Vec<Vec<f64>> = rows
        .iter()
        .map(|row| row.iter().zip(&means).map(|(x, mean)| x - mean).collect())
        .collect();
    let product = |a: usize, b: usize| centred.iter().map(|row| row[a] * row[b]).sum::<f64>();
    let mut system: Vec<Vec<f64>> = (0..width)
        .map(|a| {
            let mut row: Vec<f64> = (0..width)
                .map(|b| product(a, b) + if a == b { RIDGE } else { 0.0 })
                .collect();
            row.push(centred.iter().zip(values).map(|(row, y)| row[a] * (y - mean)).sum());
            row
        })
        .collect();
    let weights = solved(&mut system);
    let predicted = |row: &Vec<f64>| row.iter().zip(&weights).map(|(x, weight)| x * weight).sum::<f64>();
    let left: f64 = centred
        .iter()
        .zip(values)
        .map(|(row, y)| (y - mean - predicted(row)).powi(2))
        .sum();
    let all: f64 = values.iter().map(|y| (y - mean).powi(2)).sum();
    if all > 0.0 { 1.0 - left / all } else { 1.0 }
}

/// Gaussian elimination of a positive definite system with its right side in the last column.
fn solved(system: &mut [Vec<f64>]) -> Vec<f64> {
    let width = system.len();
    for pivot in 0..width {
        let (above, below) = system.split_at_mut(pivot + 1);
        let row = &above[pivot];
        for other in below {
            let factor = other[pivot] / row[pivot];
            other[pivot..]
                .iter_mut()
                .zip(&row[pivot..])
                .for_each(|(value, own)| *value -= factor * own);
        }
    }
    let mut weights = vec![0.0; width];
    for index in (0..width).rev() {
        let known: f64 = (index + 1..width)
            .map(|other| system[index][other] * weights[other])
            .sum();
        weights[index] = (system[index][width] - known) / system[index][index];
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_always_went_together_is_not_told_apart() {
        let axes = [Axis::Number, Axis::Number, Axis::Number];
        let spread = |index: usize| (index * 7 % 11) as f64 / 10.0;
        let together: Vec<Point> = (0..20)
            .map(|index| vec![(index % 2) as f64, (index % 2) as f64, spread(index)])
            .collect();
        assert!(!tells_apart(&axes, &together, 0, 1.0, 0.0));
        let apart: Vec<Point> = (0..20)
            .map(|index| vec![(index % 2) as f64, (index / 2 % 2) as f64, spread(index)])
            .collect();
        assert!(tells_apart(&axes, &apart, 0, 1.0, 0.0));
        // One trial says nothing of a value.
        assert!(!tells_apart(&axes, &apart[..3], 0, 1.0, 0.0));
    }
}
