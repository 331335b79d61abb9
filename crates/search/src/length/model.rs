//! The posterior of losses over setting and length.
//!
//! ln loss is a Gaussian process with the kernel of `covariance.rs` and unknown signal variance s^2. For each set of
//! hyper-parameters of a grid, s^2 has an inverse-gamma posterior, and predictions are Student's; the sets are averaged by their
//! evidence. No optimiser, and random numbers only for what is asked of many settings at once.

use rand::RngExt;
use rand_distr::{ChiSquared, StandardNormal};

use super::covariance::{Hyper, Others, Point};
use crate::gp::dot;
use crate::seeded::{Stream, generator};

/// Shape and scale of the prior of s^2: losses differ by some tens of percent.
const SIGNAL_SHAPE: f64 = 2.0;
const SIGNAL_SCALE: f64 = 0.04;
/// Fall of ln loss with ln tokens that is expected before any evidence.
const EXPONENT: f64 = 0.2;
/// Sets of hyper-parameters that are kept: the most probable ones, and the share of the first below which there are none.
const MOST_SETS: usize = 32;
const LEAST_SHARE: f64 = 0.01;
/// Joint draws of many losses.
const DRAWS: f64 = 600.0;
/// Added to the diagonal of joint covariances.
const JITTER: f64 = 1e-9;

/// A model of ln loss, conditioned on trainings.
#[derive(Clone, Debug)]
pub(super) struct Model {
    others: Others,
    points: Vec<Point>,
    sets: Vec<Set>,
}

/// One set of hyper-parameters with what follows of it.
#[derive(Clone, Debug)]
struct Set {
    hyper: Hyper,
    /// Its probability; before they are normalised, the logarithm.
    weight: f64,
    factor: Factor,
    /// K^-1 (y - mean).
    weights: Vec<f64>,
    mean: f64,
    /// Degrees of freedom, and the mean of s^2.
    freedom: f64,
    signal: f64,
}

impl Model {
    /// `None` where there are fewer than two trainings or a number is not finite. `log_losses` are of the points.
    pub(super) fn new(others: Others, points: Vec<Point>, log_losses: &[f64]) -> Option<Self> {
        if points.len() < 2 || log_losses.iter().any(|loss| !loss.is_finite()) {
            return None;
        }
        let sets = Hyper::grid().filter_map(|(hyper, log_prior)| {
            let mut set = Set::new(&others, &points, log_losses, hyper)?;
            set.weight += log_prior;
            Some(set)
        });
        let mut sets: Vec<Set> = sets.filter(|set| set.weight.is_finite()).collect();
        sets.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let most = sets.first()?.weight;
        sets.truncate(MOST_SETS);
        for set in &mut sets {
            set.weight = (set.weight - most).exp();
        }
        sets.retain(|set| set.weight >= LEAST_SHARE);
        let total: f64 = sets.iter().map(|set| set.weight).sum();
        for set in &mut sets {
            set.weight /= total;
        }
        Some(Self { others, points, sets })
    }

    /// Mean and variance of ln loss at a point, and the mean loss.
    pub(super) fn at(&self, point: Point) -> (f64, f64, f64) {
        let (mut mean, mut square, mut loss) = (0.0, 0.0, 0.0);
        for set in &self.sets {
            let (own, mut column) = self.weighed(set, point);
            set.factor.solve(&mut column);
            let variance = set.variance(self.others.covariance(&set.hyper, point, point) - dot(&column, &column));
            mean += set.weight * own;
            square += set.weight * (own * own + variance);
            loss += set.weight * (own + 0.5 * variance).exp();
        }
        (mean, (square - mean * mean).max(0.0), loss)
    }

    /// Draws of ln loss at all of these points together; always the same ones.
    pub(super) fn draws(&self, points: &[Point]) -> Vec<Vec<f64>> {
        // Design note: the seed is no study's. What is said of the same trainings has to be the same wherever it is said.
        let mut random = generator(0, Stream::Length, points.len());
        let mut draws = Vec::new();
        for set in &self.sets {
            let Some((means, factor)) = self.jointly(set, points) else {
                continue;
            };
            let Ok(spread) = ChiSquared::new(set.freedom) else {
                continue;
            };
            for _ in 0..(set.weight * DRAWS).round() as usize {
                let wider = (set.freedom / random.sample::<f64, _>(spread).max(f64::MIN_POSITIVE)).sqrt();
                let normals: Vec<f64> = points.iter().map(|_| random.sample(StandardNormal)).collect();
                let of_point = |(index, mean): (usize, &f64)| mean + wider * factor.row(index, &normals);
                draws.push(means.iter().enumerate().map(of_point).collect());
            }
        }
        draws
    }

    /// Mean p over the sets.
    pub(super) fn shift(&self) -> f64 {
        self.sets.iter().map(|set| set.weight * set.hyper.shift).sum()
    }

    fn jointly(&self, set: &Set, points: &[Point]) -> Option<(Vec<f64>, Factor)> {
        let mut means = Vec::with_capacity(points.len());
        let mut columns = Vec::with_capacity(points.len());
        for point in points {
            let (mean, mut column) = self.weighed(set, *point);
            set.factor.solve(&mut column);
            means.push(mean);
            columns.push(column);
        }
        let factor = Factor::of(points.len(), |i, j| {
            let left = self.others.covariance(&set.hyper, points[i], points[j]) - dot(&columns[i], &columns[j]);
            let jitter = if i == j { JITTER } else { 0.0 };
            set.signal * left + jitter
        })?;
        Some((means, factor))
    }

    /// The mean at a point and k to the trainings.
    fn weighed(&self, set: &Set, point: Point) -> (f64, Vec<f64>) {
        let of = |training: &Point| self.others.covariance(&set.hyper, point, *training);
        let column: Vec<f64> = self.points.iter().map(of).collect();
        let mean = set.mean - EXPONENT * point.log_tokens + dot(&column, &set.weights);
        (mean, column)
    }
}

impl Set {
    fn new(others: &Others, points: &[Point], log_losses: &[f64], hyper: Hyper) -> Option<Self> {
        let count = points.len() as f64;
        let noise = hyper.noise * hyper.noise;
        let factor = Factor::of(points.len(), |i, j| {
            others.covariance(&hyper, points[i], points[j]) + if i == j { noise } else { 0.0 }
        })?;
        let detrended = points.iter().zip(log_losses);
        let mut whitened: Vec<f64> = detrended
            .map(|(point, loss)| loss + EXPONENT * point.log_tokens)
            .collect();
        let mean = whitened.iter().sum::<f64>() / count;
        whitened.iter_mut().for_each(|value| *value -= mean);
        factor.solve(&mut whitened);
        let shape = SIGNAL_SHAPE + 0.5 * count;
        let scale = SIGNAL_SCALE + 0.5 * dot(&whitened, &whitened);
        factor.solve_transposed(&mut whitened);
        Some(Self {
            weight: -factor.half_log_determinant() - shape * scale.ln(),
            hyper,
            factor,
            weights: whitened,
            mean,
            freedom: 2.0 * shape,
            signal: scale / shape,
        })
    }

    fn variance(&self, left: f64) -> f64 {
        self.signal * left.max(JITTER)
    }
}

/// A lower Cholesky factor L, its rows one after the other.
#[derive(Clone, Debug)]
struct Factor {
    rows: Vec<Vec<f64>>,
}

impl Factor {
    /// `None` where the matrix is not positive definite. `value` gives its lower triangle.
    fn of(count: usize, value: impl Fn(usize, usize) -> f64) -> Option<Self> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(count);
        for i in 0..count {
            let mut row = Vec::with_capacity(i + 1);
            for (j, other) in rows.iter().enumerate() {
                let left = value(i, j) - dot(&row, &other[..j]);
                row.push(left / other[j]);
            }
            let pivot = value(i, i) - dot(&row, &row);
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
            row.push(pivot.sqrt());
            rows.push(row);
        }
        Some(Self { rows })
    }

    /// Replaces b by L^-1 b.
    fn solve(&self, vector: &mut [f64]) {
        for (i, row) in self.rows.iter().enumerate() {
            vector[i] = (vector[i] - dot(&row[..i], &vector[..i])) / row[i];
        }
    }

    /// Replaces b by L^-T b.
    fn solve_transposed(&self, vector: &mut [f64]) {
        for (i, row) in self.rows.iter().enumerate().rev() {
            vector[i] /= row[i];
            let value = vector[i];
            for (left, factor) in vector[..i].iter_mut().zip(row) {
                *left -= value * factor;
            }
        }
    }

    /// Row `index` of L times a vector.
    fn row(&self, index: usize, vector: &[f64]) -> f64 {
        dot(&self.rows[index], &vector[..=index])
    }

    fn half_log_determinant(&self) -> f64 {
        self.rows
            .iter()
            .filter_map(|row| row.last())
            .map(|pivot| pivot.ln())
            .sum()
    }
}
