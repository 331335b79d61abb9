//! The covariance kernel: all axes together, plus each axis alone.
//!
//! k(x, x') = s^2 m(r) + sum over axes of a_d q_d(x_d, x'_d)
//!
//! The first term is the Matern kernel of smoothness 5/2 on the sum of scaled squared distances; it can follow anything but
//! has to see it. The second is a sum of functions of one axis each (Duvenaud, Nickisch and Rasmussen 2011): what each
//! precision costs, whatever the batch. Logarithms of throughput and memory are nearly such sums, and a few trials teach
//! them. q is a rational quadratic of fixed width, 1 / (1 + c square), which needs no exponential.
//!
//! m(r) = (1 + sqrt5 r + 5/3 r^2) exp(-sqrt5 r), so m(0) = 1 and dm/d(r^2) = -5/6 (1 + sqrt5 r) exp(-sqrt5 r)
//! (Rasmussen and Williams 2006, equation 4.17).

use crate::encode::{Axis, Point};

const SQRT_5: f64 = 2.236_067_977_499_79;

/// m and dm/d(r^2) at r^2.
pub(crate) fn matern(r2: f64) -> (f64, f64) {
    let a = SQRT_5 * r2.sqrt();
    let decay = (-a).exp();
    ((1.0 + a + a * a / 3.0) * decay, -5.0 / 6.0 * (1.0 + a) * decay)
}

/// c of an ordered axis: half correlation over its whole range; and of an unordered one.
const WIDTHS: (f64, f64) = (1.0, 4.0);

/// c of an axis.
pub(super) fn width(axis: &Axis) -> f64 {
    match axis {
        Axis::Number => WIDTHS.0,
        Axis::Choice { .. } => WIDTHS.1,
    }
}

/// q at a squared distance, with width c.
pub(super) fn alone(square: f64, width: f64) -> f64 {
    1.0 / (1.0 + width * square)
}

/// Squared distances between all pairs of training points, one packed strict lower triangle an axis: pair (i, j), j < i,
/// stands at i (i - 1) / 2 + j. Beside them q of every pair.
#[derive(Clone, Debug)]
pub(super) struct Distances {
    pub(super) points: usize,
    pub(super) axes: Vec<Vec<f64>>,
    pub(super) alone: Vec<Vec<f64>>,
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
        let packed_axes: Vec<Vec<f64>> = used.iter().map(packed).collect();
        let alone = |(squares, index): (&Vec<f64>, &usize)| {
            let width = width(&axes[*index]);
            squares.iter().map(|square| alone(*square, width)).collect()
        };
        Self {
            points: points.len(),
            alone: packed_axes.iter().zip(used).map(alone).collect(),
            axes: packed_axes,
        }
    }

    /// r^2 of every pair.
    pub(super) fn scaled(&self, theta: &[f64]) -> Vec<f64> {
        self.summed(&self.axes, theta)
    }

    /// The sum of a_d q_d of every pair.
    pub(super) fn additive(&self, weights: &[f64]) -> Vec<f64> {
        self.summed(&self.alone, weights)
    }

    fn summed(&self, axes: &[Vec<f64>], factors: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.points * self.points.saturating_sub(1) / 2];
        for (values, factor) in axes.iter().zip(factors) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += factor * value;
            }
        }
        sums
    }
}

/// A dot product; four running sums, so that the additions need not wait for each other.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (a_fours, b_fours) = (a.chunks_exact(4), b.chunks_exact(4));
    let rest: f64 = a_fours
        .remainder()
        .iter()
        .zip(b_fours.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a_fours.zip(b_fours) {
        for lane in 0..4 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
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
