//! The posterior of losses over setting and length.
//!
//! ln loss is a Gaussian process with the kernel of `covariance.rs` and unknown signal variance s^2. For each set of
//! hyper-parameters of a grid, s^2 has an inverse-gamma posterior, and predictions are Student's; the sets are averaged by their
//! evidence. No optimiser, and random numbers only for what is asked of many settings at once.

use rand::RngExt;
use rand_distr::{ChiSquared, StandardNormal};

use super::covariance::{Hyper, LONGER, Others, Point};
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
/// Noise of a loss by the seed, as a share of it.
const NOISE: f64 = 0.003;
/// Least spread of ln losses after one length.
const LEAST_SPREAD: f64 = 1e-3;
/// Sets that are enough to say which settings are hopeful.
const ROUGH_SETS: usize = 4;
/// Greatest ln of an expected loss: what is far beyond all evidence may be anything.
const MOST_LOG_LOSS: f64 = 300.0;
/// Joint draws of many losses.
const DRAWS: f64 = 600.0;
/// Additions to the diagonal of joint covariances, in the signal's variance, that are tried until they are positive
/// definite.
const JITTERS: [f64; 4] = [1e-8, 1e-6, 1e-4, 1e-2];

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
    /// Probability of these values; before they are normalised, the logarithm.
    weight: f64,
    factor: Factor,
    /// K^-1 (y - mean).
    weights: Vec<f64>,
    mean: f64,
    /// Degrees of freedom of what is predicted, and the square of its scale where k is 1.
    freedom: f64,
    square_scale: f64,
}

impl Model {
    /// Fits the model; `None` where there are fewer than two trainings or a number is not finite. `log_losses` are of
    /// the points.
    pub(super) fn new(others: Others, points: Vec<Point>, log_losses: &[f64]) -> Option<Self> {
        if points.len() < 2 || log_losses.iter().any(|loss| !loss.is_finite()) {
            return None;
        }
        let noise_of = |signal: f64| (NOISE * NOISE / signal).min(1.0);
        let spread = spread_at_once(&points, log_losses);
        let sets = Hyper::grid().filter_map(|(hyper, log_prior)| {
            let fitted = |noise| Set::new(&others, &points, log_losses, noise, hyper);
            // Short trainings that all did well differ by less than the signal: what it is to these hyper-parameters comes of a first fit.
            let first = fitted(noise_of(spread * spread))?;
            let mut set = fitted(noise_of(first.square_scale))?;
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

    /// The mean loss at a point.
    pub(super) fn expected_loss(&self, point: Point) -> f64 {
        let of_set = |set: &Set| {
            let (mean, variance) = self.of_set(set, point);
            set.weight * (mean + 0.5 * variance).min(MOST_LOG_LOSS).exp()
        };
        self.sets.iter().map(of_set).sum()
    }

    /// Mean and standard deviation of ln loss at a point, by the most probable hyper-parameters alone.
    pub(super) fn roughly(&self, point: Point) -> (f64, f64) {
        let (mut total, mut mean, mut square) = (0.0, 0.0, 0.0);
        for set in self.sets.iter().take(ROUGH_SETS) {
            let (own, variance) = self.of_set(set, point);
            total += set.weight;
            mean += set.weight * own;
            square += set.weight * (own * own + variance);
        }
        let (mean, square) = (mean / total, square / total);
        (mean, (square - mean * mean).max(0.0).sqrt())
    }

    /// Standard deviation of what tells the ln losses of two points apart.
    pub(super) fn apart(&self, a: Point, b: Point) -> f64 {
        let (mut mean, mut square) = (0.0, 0.0);
        for set in &self.sets {
            let ((of_a, mut to_a), (of_b, mut to_b)) = (self.weighed(set, a), self.weighed(set, b));
            set.factor.solve(&mut to_a);
            set.factor.solve(&mut to_b);
            let own = |one: Point, other: Point| self.others.covariance(&set.hyper, one, other);
            let prior = own(a, a) + own(b, b) - 2.0 * own(a, b);
            let known: f64 = to_a.iter().zip(&to_b).map(|(a, b)| (a - b) * (a - b)).sum();
            let variance = set.variance((prior - known).max(0.0));
            mean += set.weight * (of_a - of_b);
            square += set.weight * ((of_a - of_b) * (of_a - of_b) + variance);
        }
        (square - mean * mean).max(0.0).sqrt()
    }

    fn of_set(&self, set: &Set, point: Point) -> (f64, f64) {
        let (mean, mut column) = self.weighed(set, point);
        set.factor.solve(&mut column);
        let left = self.others.covariance(&set.hyper, point, point) - dot(&column, &column);
        (mean, set.variance(left.max(JITTERS[0])))
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

    fn jointly(&self, set: &Set, points: &[Point]) -> Option<(Vec<f64>, Factor)> {
        let mut means = Vec::with_capacity(points.len());
        let mut columns = Vec::with_capacity(points.len());
        for point in points {
            let (mean, mut column) = self.weighed(set, *point);
            set.factor.solve(&mut column);
            means.push(mean);
            columns.push(column);
        }
        let factor = JITTERS.iter().find_map(|jitter| {
            Factor::of(points.len(), |i, j| {
                let left = self.others.covariance(&set.hyper, points[i], points[j]) - dot(&columns[i], &columns[j]);
                set.square_scale * if i == j { left.max(0.0) + jitter } else { left }
            })
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
    /// `noise` is the variance of a loss, in that of the signal.
    fn new(others: &Others, points: &[Point], log_losses: &[f64], noise: f64, hyper: Hyper) -> Option<Self> {
        let count = points.len() as f64;
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
            square_scale: scale / shape,
        })
    }

    /// The variance of what the trainings leave this k of: that of Student's t, which is n / (n - 2) times the square
    /// of its scale with n degrees of freedom, so that s^2 has its posterior mean. Here n is 6 or more.
    fn variance(&self, left: f64) -> f64 {
        self.square_scale * left * self.freedom / (self.freedom - 2.0)
    }
}

/// Standard deviation of ln losses after the shortest trainings, which nearly all settings had.
fn spread_at_once(points: &[Point], log_losses: &[f64]) -> f64 {
    let pairs = points
        .iter()
        .zip(log_losses)
        .filter(|(point, _)| point.log_tokens < LONGER.ln());
    let losses: Vec<f64> = pairs.map(|(_, loss)| *loss).collect();
    let count = losses.len().max(1) as f64;
    let mean = losses.iter().sum::<f64>() / count;
    let square: f64 = losses.iter().map(|loss| (loss - mean) * (loss - mean)).sum();
    (square / count).sqrt().max(LEAST_SPREAD)
}

/// A lower Cholesky factor L, its rows one after the other.
#[derive(Clone, Debug)]
struct Factor {
    rows: Vec<Vec<f64>>,
}

impl Factor {
    /// Factors a matrix whose lower triangle `value` gives; `None` where it is not positive definite.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variance_that_is_said_is_that_of_the_draws() {
        let at = |rate: f64, times: f64| Point {
            others: 0,
            log_rate: rate.ln(),
            log_tokens: times.ln(),
        };
        let trained = vec![at(1e-3, 1.0), at(1e-3, 10.0)];
        let losses = [2.0f64.ln(), 1.5f64.ln()];
        let mut model = Model::new(Others::new(1, |_, _| 0.0), trained, &losses).unwrap();
        // One set alone, with a hundred times the usual draws.
        model.sets.truncate(1);
        model.sets[0].weight = 100.0;
        let (one, other) = (at(4e-3, 30.0), at(1e-3, 30.0));
        let draws = model.draws(&[one, other]);
        let variance = |of: &dyn Fn(&Vec<f64>) -> f64| {
            let count = draws.len() as f64;
            let mean = draws.iter().map(of).sum::<f64>() / count;
            draws.iter().map(|draw| (of(draw) - mean).powi(2)).sum::<f64>() / count
        };
        let said = model.of_set(&model.sets[0], one).1;
        let drawn = variance(&|draw| draw[0]);
        assert!((drawn / said - 1.0).abs() < 0.1, "{drawn} {said}");
        model.sets[0].weight = 1.0;
        let said = model.apart(one, other).powi(2);
        let drawn = variance(&|draw| draw[0] - draw[1]);
        assert!((drawn / said - 1.0).abs() < 0.1, "{drawn} {said}");
    }
}
