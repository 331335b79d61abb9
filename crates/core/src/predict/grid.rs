//! A function known at the points of a grid, read between them.
//!
//! All axes and the values are logarithmic: between two points a value follows a power law, which is what the time of an
//! op does between its overhead and its ceiling. Below the grid the nearest point counts; above it the time grows with
//! the size, as it does where the ceiling is reached.

use serde::{Deserialize, Serialize};

/// Positive values on a grid of positive coordinates, both held as natural logarithms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Logarithms of each axis' coordinates, rising.
    axes: Vec<Vec<f64>>,
    /// Logarithms of the values, the last axis varying fastest.
    values: Vec<f64>,
}

impl Grid {
    /// A grid of the values that `value` has at its points.
    pub fn measured(axes: Vec<Vec<f64>>, mut value: impl FnMut(&[f64]) -> f64) -> Self {
        let count: usize = axes.iter().map(Vec::len).product();
        let values = (0..count)
            .map(|index| {
                let mut rest = index;
                let mut point = vec![0.0; axes.len()];
                for (coordinate, axis) in point.iter_mut().zip(&axes).rev() {
                    *coordinate = axis[rest % axis.len()];
                    rest /= axis.len();
                }
                value(&point).ln()
            })
            .collect();
        let logs = |axis: Vec<f64>| axis.into_iter().map(f64::ln).collect();
        Self {
            axes: axes.into_iter().map(logs).collect(),
            values,
        }
    }

    /// Returns the values without the last axes, which have one point each.
    #[must_use]
    pub fn with_axes(mut self, axes: usize) -> Self {
        self.axes.truncate(axes);
        self
    }

    /// The value at a point of as many coordinates as there are axes; `None` where the grid is empty or damaged.
    pub fn at(&self, point: &[f64]) -> Option<f64> {
        let count: usize = self.axes.iter().map(Vec::len).product();
        if count == 0 || count != self.values.len() || point.len() != self.axes.len() {
            return None;
        }
        // A corner of the cell around the point: its index and its weight.
        let mut corners = [(0usize, 0f64); 8];
        corners[0] = (0, 1.0);
        let mut used = 1;
        let mut beyond = 0.0;
        for (axis, coordinate) in self.axes.iter().zip(point) {
            let (coordinate, first, last) = (coordinate.ln(), axis[0], axis[axis.len() - 1]);
            let inside = coordinate.clamp(first, last);
            beyond += (coordinate - last).max(0.0);
            let upper = axis.partition_point(|value| *value < inside).max(1).min(axis.len() - 1);
            let lower = upper.saturating_sub(1);
            let share = match axis[upper] > axis[lower] {
                true => (inside - axis[lower]) / (axis[upper] - axis[lower]),
                false => 0.0,
            };
            if used * 2 > corners.len() {
                return None;
            }
            for corner in 0..used {
                let (index, weight) = corners[corner];
                corners[corner] = (index * axis.len() + lower, weight * (1.0 - share));
                corners[used + corner] = (index * axis.len() + upper, weight * share);
            }
            used *= 2;
        }
        let log: f64 = corners[..used]
            .iter()
            .map(|(index, weight)| weight * self.values[*index])
            .sum();
        Some((log + beyond).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_law_is_read_exactly_between_the_points() {
        let law = |point: &[f64]| 3.0 * point[0].powf(0.5) * point[1].powf(1.5) * point[2];
        let axis = || vec![2.0, 8.0, 64.0];
        let grid = Grid::measured(vec![axis(), axis(), axis()], law);
        for point in [[2.0, 8.0, 64.0], [3.0, 11.0, 40.0], [5.0, 60.0, 2.5]] {
            let (read, exact) = (grid.at(&point).unwrap(), law(&point));
            assert!((read / exact - 1.0).abs() < 1e-12, "{point:?}: {read} for {exact}");
        }
    }

    #[test]
    fn beyond_the_grid_time_grows_with_the_size_and_below_it_stays() {
        let grid = Grid::measured(vec![vec![10.0, 100.0]], |point| point[0]);
        assert!((grid.at(&[400.0]).unwrap() - 400.0).abs() < 1e-9);
        assert!((grid.at(&[1.0]).unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(Grid::default().at(&[1.0]), None);
    }
}
