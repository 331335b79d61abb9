//! The Matern covariance kernel with smoothness 5/2 on a sum of per-axis squared distances.
//!
//! m(r) = (1 + sqrt5 r + 5/3 r^2) exp(-sqrt5 r), so m(0) = 1 and dm/d(r^2) = -5/6 (1 + sqrt5 r) exp(-sqrt5 r)
//! (Rasmussen and Williams 2006, equation 4.17).

use crate::search::encode::{Axis, Point};

const SQRT_5: f64 = 2.236_067_977_499_79;

/// m and dm/d(r^2) at r^2.
pub(super) fn matern(r2: f64) -> (f64, f64) {
    let a = SQRT_5 * r2.sqrt();
    let decay = (-a).exp();
    ((1.0 + a + a * a / 3.0) * decay, -5.0 / 6.0 * (1.0 + a) * decay)
}

/// Squared distances between all pairs of training points, one packed strict lower triangle an axis: pair (i, j), j < i,
/// stands at i (i - 1) / 2 + j.
#[derive(Clone, Debug)]
pub(super) struct Distances {
    pub(super) points: usize,
    pub(super) axes: Vec<Vec<f64>>,
}

impl Distances {
    pub(super) fn new(axes: &[Axis], used: &[usize], points: &[Point]) -> Self {
        let packed = |index: &usize| {
            let mut squares = Vec::with_capacity(points.len() * points.len().saturating_sub(1) / 2);
            for (i, a) in points.iter().enumerate() {
                squares.extend(points[..i].iter().map(|b| axes[*index].square(a[*index], b[*index])));
            }
            squares
        };
        Self {
            points: points.len(),
            axes: used.iter().map(packed).collect(),
        }
    }

    /// r^2 of every pair.
    pub(super) fn scaled(&self, theta: &[f64]) -> Vec<f64> {
        let mut r2 = vec![0.0; self.points * self.points.saturating_sub(1) / 2];
        for (squares, theta) in self.axes.iter().zip(theta) {
            for (sum, square) in r2.iter_mut().zip(squares) {
                *sum += theta * square;
            }
        }
        r2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_the_derivative() {
        assert_eq!(matern(0.0), (1.0, -5.0 / 6.0));
        for r2 in [1e-4f64, 0.3, 2.0, 40.0] {
            let step = r2 * 1e-5;
            let numeric = (matern(r2 + step).0 - matern(r2 - step).0) / (2.0 * step);
            assert!((numeric / matern(r2).1 - 1.0).abs() < 1e-6);
        }
    }
}
