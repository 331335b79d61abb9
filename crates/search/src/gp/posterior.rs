//! The posterior of a Gaussian process with given hyper-parameters.
//!
//! At x: mean mu + k(x)^T alpha and variance k(x, x) - |L^-1 k(x)|^2 of the noise-free function; gradients
//! dmean = alpha^T dk and dvariance = -2 (K^-1 k)^T dk.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Mat, Par};
use rayon::prelude::*;

use super::covariance::{alone, dot, matern, width};
use super::fit::FitInput;
use super::hyper::Hyper;
use crate::encode::{Axis, Point};

/// Points predicted together: enough columns for a fast triangular solve, few enough to stay in cache.
const BLOCK: usize = 64;
/// Additions to the diagonal, relative to s^2, that are tried until K is positive definite.
const JITTERS: [f64; 4] = [1e-9, 1e-7, 1e-5, 1e-3];
/// Least variance relative to s^2: a prediction is never certain to the last bit.
const LEAST_VARIANCE: f64 = 1e-10;

/// A Gaussian process conditioned on data.
#[derive(Clone, Debug)]
pub(crate) struct Gp {
    axes: Vec<Axis>,
    used: Vec<usize>,
    /// Training coordinates, one list a used axis.
    columns: Vec<Vec<f64>>,
    theta: Vec<f64>,
    hyper: Hyper,
    /// Noise variance of each training point.
    noises: Vec<f64>,
    targets: Vec<f64>,
    /// L.
    factor: Mat<f64>,
    mean: f64,
    alpha: Vec<f64>,
}

/// A prediction with its gradient by the point's coordinates (0 along unordered axes).
#[derive(Clone, Debug)]
pub(crate) struct Slope {
    pub(crate) mean: f64,
    pub(crate) variance: f64,
    pub(crate) mean_gradient: Vec<f64>,
    pub(crate) variance_gradient: Vec<f64>,
}

impl Gp {
    /// Conditions on data; `noises` overrides the fitted noise variance of each point. `None` where K cannot be factorised
    /// (a coordinate or target is not finite).
    pub(crate) fn new(data: &FitInput<'_>, hyper: Hyper, noises: Option<Vec<f64>>) -> Option<Self> {
        let n = data.points.len();
        let column = |index: &usize| data.points.iter().map(|point| point[*index]).collect();
        let mut gp = Self {
            axes: data.axes.to_vec(),
            used: data.used.to_vec(),
            columns: data.used.iter().map(column).collect(),
            theta: hyper.theta(),
            noises: noises.unwrap_or_else(|| {
                let extra = |index: usize| data.noises.get(index).copied().unwrap_or(0.0);
                (0..n).map(|index| hyper.noise + extra(index)).collect()
            }),
            hyper,
            targets: data.targets.to_vec(),
            factor: Mat::zeros(0, 0),
            mean: 0.0,
            alpha: Vec::new(),
        };
        gp.factor = JITTERS.iter().find_map(|jitter| gp.factorised(data.points, *jitter))?;
        gp.weigh();
        gp.alpha.iter().all(|weight| weight.is_finite()).then_some(gp)
    }

    /// The process with one more observation, in quadratic time; hyper-parameters and mean stay.
    pub(crate) fn with_observation(&self, point: &Point, target: f64, noise: f64) -> Self {
        let n = self.targets.len();
        let mut row = self.covariances(point);
        self.solve_lower(&mut row);
        let rest = self.hyper.total_variance() + noise - row.iter().map(|value| value * value).sum::<f64>();
        let corner = rest.max(JITTERS[1] * self.hyper.variance).sqrt();
        let mut grown = self.clone();
        grown.factor = Mat::from_fn(n + 1, n + 1, |i, j| match (i < n, j < n) {
            (true, true) => self.factor[(i, j)],
            (false, true) => row[j],
            (false, false) => corner,
            (true, false) => 0.0,
        });
        for (column, index) in grown.columns.iter_mut().zip(&self.used) {
            column.push(point[*index]);
        }
        grown.noises.push(noise);
        grown.targets.push(target);
        grown.alpha = grown.solved(&grown.targets.iter().map(|y| y - grown.mean).collect::<Vec<_>>());
        grown
    }

    pub(crate) fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// Mean and variance of the noise-free function at a point.
    pub(crate) fn predict(&self, point: &Point) -> (f64, f64) {
        let mut k = self.covariances(point);
        let mean = self.mean + dot(&k, &self.alpha);
        self.solve_lower(&mut k);
        (mean, self.variance_left(dot(&k, &k)))
    }

    /// [`Gp::predict`] of many points, in parallel.
    pub(crate) fn predict_many(&self, points: &[Point]) -> Vec<(f64, f64)> {
        let blocks: Vec<Vec<(f64, f64)>> = points
            .par_chunks(BLOCK)
            .map(|block| self.predict_block(block))
            .collect();
        blocks.concat()
    }

    /// Mean and variance with gradients, for climbing along continuous axes.
    pub(crate) fn slope(&self, point: &Point) -> Slope {
        let (r2, mut k) = self.sums(point, 0);
        let kernel: Vec<(f64, f64)> = r2.into_iter().map(matern).collect();
        for (k, (m, _)) in k.iter_mut().zip(&kernel) {
            *k += self.hyper.variance * m;
        }
        let mut whitened = k.clone();
        self.solve_lower(&mut whitened);
        let variance = self.variance_left(dot(&whitened, &whitened));
        self.solve_upper(&mut whitened);
        let mut slope = Slope {
            mean: self.mean + dot(&k, &self.alpha),
            variance,
            mean_gradient: vec![0.0; point.len()],
            variance_gradient: vec![0.0; point.len()],
        };
        for (axis, (index, column)) in self.used.iter().zip(&self.columns).enumerate() {
            if self.axes[*index] != Axis::Number {
                continue;
            }
            let together = 2.0 * self.theta[axis] * self.hyper.variance;
            let width = width(&self.axes[*index]);
            let apart = -2.0 * width * self.hyper.weights[axis];
            let (mut by_mean, mut by_variance) = (0.0, 0.0);
            for (i, coordinate) in column.iter().enumerate() {
                let gap = point[*index] - coordinate;
                let q = alone(gap * gap, width);
                let dk = (together * kernel[i].1 + apart * q * q) * gap;
                by_mean += self.alpha[i] * dk;
                by_variance += whitened[i] * dk;
            }
            slope.mean_gradient[*index] = by_mean;
            slope.variance_gradient[*index] = -2.0 * by_variance;
        }
        slope
    }

    /// Means and covariance matrix of the noise-free function at several points.
    pub(crate) fn predict_jointly(&self, points: &[Point]) -> (Vec<f64>, Mat<f64>) {
        let mut means = Vec::with_capacity(points.len());
        let mut whitened = Vec::with_capacity(points.len());
        for point in points {
            let mut k = self.covariances(point);
            means.push(self.mean + dot(&k, &self.alpha));
            self.solve_lower(&mut k);
            whitened.push(k);
        }
        let covariance = Mat::from_fn(points.len(), points.len(), |i, j| {
            if i == j {
                return self.variance_left(dot(&whitened[i], &whitened[i]));
            }
            self.between(&points[i], &points[j]) - dot(&whitened[i], &whitened[j])
        });
        (means, covariance)
    }

    fn variance_left(&self, explained: f64) -> f64 {
        let total = self.hyper.total_variance();
        (total - explained).max(LEAST_VARIANCE * total)
    }

    /// k of two points.
    fn between(&self, a: &Point, b: &Point) -> f64 {
        let (mut r2, mut sum) = (0.0, 0.0);
        for (axis, index) in self.used.iter().enumerate() {
            let square = self.axes[*index].square(a[*index], b[*index]);
            r2 += self.theta[axis] * square;
            sum += self.hyper.weights[axis] * alone(square, width(&self.axes[*index]));
        }
        sum + self.hyper.variance * matern(r2).0
    }

    /// r^2 and the sum of a_d q_d from a point to the training points from number `first` on.
    fn sums(&self, point: &Point, first: usize) -> (Vec<f64>, Vec<f64>) {
        let mut r2 = vec![0.0; self.targets.len() - first];
        let mut sums = r2.clone();
        for (axis, (index, column)) in self.used.iter().zip(&self.columns).enumerate() {
            let (theta, weight) = (self.theta[axis], self.hyper.weights[axis]);
            let at = point[*index];
            let pairs = r2.iter_mut().zip(&mut sums).zip(&column[first..]);
            match &self.axes[*index] {
                number @ Axis::Number => {
                    let width = width(number);
                    for ((r2, sum), coordinate) in pairs {
                        let square = (at - coordinate) * (at - coordinate);
                        *r2 += theta * square;
                        *sum += weight * alone(square, width);
                    }
                }
                choice @ Axis::Choice { .. } => {
                    let width = width(choice);
                    for ((r2, sum), coordinate) in pairs {
                        let square = choice.square(at, *coordinate);
                        *r2 += theta * square;
                        *sum += weight * alone(square, width);
                    }
                }
            }
        }
        (r2, sums)
    }

    /// k(x).
    fn covariances(&self, point: &Point) -> Vec<f64> {
        self.covariances_from(point, 0)
    }

    /// k between a point and the training points from number `first` on.
    fn covariances_from(&self, point: &Point, first: usize) -> Vec<f64> {
        let (r2, mut k) = self.sums(point, first);
        for (k, r2) in k.iter_mut().zip(r2) {
            *k += self.hyper.variance * matern(r2).0;
        }
        k
    }

    fn predict_block(&self, points: &[Point]) -> Vec<(f64, f64)> {
        let n = self.targets.len();
        let mut k = Mat::<f64>::zeros(n, points.len());
        let mut means = Vec::with_capacity(points.len());
        for (index, point) in points.iter().enumerate() {
            let column = self.covariances(point);
            means.push(self.mean + dot(&column, &self.alpha));
            k.col_as_slice_mut(index).copy_from_slice(&column);
        }
        solve_lower_triangular_in_place(self.factor.as_ref(), k.as_mut(), Par::Seq);
        let variance = |index: usize| {
            let column = k.col_as_slice(index);
            self.variance_left(dot(column, column))
        };
        means
            .into_iter()
            .enumerate()
            .map(|(index, mean)| (mean, variance(index)))
            .collect()
    }

    fn factorised(&self, points: &[Point], jitter: f64) -> Option<Mat<f64>> {
        let n = points.len();
        let mut k = Mat::<f64>::zeros(n, n);
        for (j, point) in points.iter().enumerate() {
            let covariances = self.covariances_from(point, j);
            for (i, value) in (j..n).zip(covariances) {
                k[(i, j)] = value;
            }
            k[(j, j)] += jitter * self.hyper.total_variance() + self.noises[j];
        }
        let scratch = llt::factor::cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default());
        let mut memory = MemBuffer::new(scratch);
        let stack = MemStack::new(&mut memory);
        llt::factor::cholesky_in_place(k.as_mut(), Default::default(), Par::Seq, stack, Default::default()).ok()?;
        Some(k)
    }

    /// Sets mu by generalised least squares, then alpha.
    fn weigh(&mut self) {
        let ones = self.solved(&vec![1.0; self.targets.len()]);
        let total: f64 = ones.iter().sum();
        self.mean = if total > 0.0 {
            dot(&ones, &self.targets) / total
        } else {
            0.0
        };
        let residuals: Vec<f64> = self.targets.iter().map(|y| y - self.mean).collect();
        self.alpha = self.solved(&residuals);
    }

    /// K^-1 times a vector.
    fn solved(&self, vector: &[f64]) -> Vec<f64> {
        let mut solved = vector.to_vec();
        self.solve_lower(&mut solved);
        self.solve_upper(&mut solved);
        solved
    }

    fn solve_lower(&self, vector: &mut [f64]) {
        for j in 0..vector.len() {
            let column = self.factor.col_as_slice(j);
            vector[j] /= column[j];
            let value = vector[j];
            for (rest, factor) in vector[j + 1..].iter_mut().zip(&column[j + 1..]) {
                *rest -= value * factor;
            }
        }
    }

    fn solve_upper(&self, vector: &mut [f64]) {
        for j in (0..vector.len()).rev() {
            let column = self.factor.col_as_slice(j);
            let below = dot(&column[j + 1..], &vector[j + 1..]);
            vector[j] = (vector[j] - below) / column[j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden::*;
    use super::*;
    use crate::encode::Encoding;
    use crate::fixtures::{categorical, parameter, unit_interval};
    use crate::gp::fit::{Effort, fit};
    use peft_tune_core::space::{Condition, Parameter, SearchSpace};
    use peft_tune_core::study::Params;

    fn data<'a>(points: &'a [Point], targets: &'a [f64]) -> FitInput<'a> {
        FitInput {
            axes: &[Axis::Number, Axis::Number],
            used: &[0, 1],
            points,
            targets,
            noises: &[],
        }
    }

    fn golden() -> (Vec<Point>, Gp) {
        let points: Vec<Point> = GOLDEN_POINTS.iter().map(|point| point.to_vec()).collect();
        let hyper = Hyper {
            lengthscales: GOLDEN_LENGTHSCALES.to_vec(),
            weights: GOLDEN_WEIGHTS.to_vec(),
            variance: GOLDEN_VARIANCE,
            noise: GOLDEN_NOISE,
        };
        let mut gp = Gp::new(&data(&points, &GOLDEN_TARGETS), hyper, None).unwrap();
        // scikit-learn's process has mean zero.
        gp.mean = 0.0;
        gp.alpha = gp.solved(&GOLDEN_TARGETS);
        (points, gp)
    }

    #[test]
    fn the_posterior_is_scikit_learns() {
        let (_, gp) = golden();
        let queries: Vec<Point> = GOLDEN_QUERIES.iter().map(|point| point.to_vec()).collect();
        for ((query, many), (mean, deviation)) in queries.iter().zip(gp.predict_many(&queries)).zip(GOLDEN_PREDICTIONS)
        {
            let (our_mean, our_variance) = gp.predict(query);
            assert!((our_mean - mean).abs() < 1e-6, "{our_mean} for {mean}");
            assert!(
                (our_variance.sqrt() - deviation).abs() < 1e-6,
                "{} for {deviation}",
                our_variance.sqrt()
            );
            assert!((many.0 - our_mean).abs() < 1e-10 && (many.1 - our_variance).abs() < 1e-10);
        }
    }

    fn mixed_space() -> SearchSpace {
        let only_sgd = |parameter: Parameter| Parameter {
            condition: Some(Condition {
                parameter: "optimizer".to_owned(),
                values: vec!["sgd".into()],
            }),
            ..parameter
        };
        SearchSpace {
            parameters: vec![
                parameter("optimizer", categorical(["adamw", "lion", "sgd"])),
                only_sgd(parameter("momentum", unit_interval())),
                only_sgd(parameter("variant", categorical(["plain", "nesterov"]))),
            ],
        }
    }

    fn encoded(space: &SearchSpace, (optimizer, momentum, variant): Setting) -> Point {
        let mut params = Params::from([("optimizer".to_owned(), ["adamw", "lion", "sgd"][optimizer].into())]);
        params.extend(momentum.map(|value| ("momentum".to_owned(), value.into())));
        params.extend(variant.map(|index| ("variant".to_owned(), ["plain", "nesterov"][index].into())));
        Encoding::new(space).point(space, &params).unwrap()
    }

    /// The reference embeds choices as corners of a simplex; here they have distances only.
    #[test]
    fn choices_and_conditions_are_scikit_learns_over_a_simplex() {
        let space = mixed_space();
        let encoding = Encoding::new(&space);
        let points: Vec<Point> = GOLDEN_MIXED.iter().map(|one| encoded(&space, *one)).collect();
        let data = FitInput {
            axes: encoding.axes(),
            used: &[0, 1, 2],
            points: &points,
            targets: &GOLDEN_MIXED_TARGETS,
            noises: &[],
        };
        let hyper = Hyper {
            lengthscales: GOLDEN_MIXED_LENGTHSCALES.to_vec(),
            weights: GOLDEN_MIXED_WEIGHTS.to_vec(),
            variance: GOLDEN_VARIANCE,
            noise: GOLDEN_NOISE,
        };
        let mut gp = Gp::new(&data, hyper, None).unwrap();
        gp.mean = 0.0;
        gp.alpha = gp.solved(&GOLDEN_MIXED_TARGETS);
        for (query, (mean, deviation)) in GOLDEN_MIXED_QUERIES.into_iter().zip(GOLDEN_MIXED_PREDICTIONS) {
            let (our_mean, our_variance) = gp.predict(&encoded(&space, query));
            assert!((our_mean - mean).abs() < 1e-5, "{query:?}: {our_mean} for {mean}");
            assert!((our_variance.sqrt() - deviation).abs() < 1e-5, "{query:?}");
        }
    }

    #[test]
    fn the_factor_gives_the_covariance_back() {
        let (points, gp) = golden();
        let product = |i: usize, j: usize| (0..=j).map(|k| gp.factor[(i, k)] * gp.factor[(j, k)]).sum::<f64>();
        for (i, point) in points.iter().enumerate() {
            let k = gp.covariances(point);
            for (j, expected) in k.iter().enumerate().take(i) {
                assert!((product(i, j) - expected).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn one_more_observation_equals_conditioning_anew() {
        let (points, gp) = golden();
        let whole = Gp::new(&data(&points, &GOLDEN_TARGETS), gp.hyper.clone(), None).unwrap();
        let last = points.len() - 1;
        let mut part = Gp::new(&data(&points[..last], &GOLDEN_TARGETS[..last]), gp.hyper.clone(), None).unwrap();
        part.mean = whole.mean;
        let grown = part.with_observation(&points[last], GOLDEN_TARGETS[last], gp.hyper.noise);
        for query in GOLDEN_QUERIES {
            let (a, b) = (grown.predict(&query.to_vec()), whole.predict(&query.to_vec()));
            assert!((a.0 - b.0).abs() < 1e-7 && (a.1 - b.1).abs() < 1e-7);
        }
    }

    #[test]
    fn gradients_are_derivatives() {
        let (_, gp) = golden();
        for query in GOLDEN_QUERIES {
            let slope = gp.slope(&query.to_vec());
            for axis in 0..2 {
                let shifted = |step: f64| {
                    let mut point = query.to_vec();
                    point[axis] += step;
                    gp.predict(&point)
                };
                let (up, down) = (shifted(1e-6), shifted(-1e-6));
                assert!(((up.0 - down.0) / 2e-6 - slope.mean_gradient[axis]).abs() < 1e-5);
                assert!(((up.1 - down.1) / 2e-6 - slope.variance_gradient[axis]).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn equal_points_and_an_unused_axis_are_no_trouble() {
        let points = vec![vec![0.2, 0.1], vec![0.2, 0.9], vec![0.8, 0.5]];
        let one_axis = FitInput {
            used: &[0],
            ..data(&points, &[1.0, 1.0, -1.0])
        };
        let fitted = fit(&one_axis, Effort::Whole).unwrap();
        let gp = Gp::new(&one_axis, fitted.hyper, None).unwrap();
        let (mean, variance) = gp.predict(&vec![0.2, 0.4]);
        assert!((mean - 1.0).abs() < 0.1 && variance < 0.1, "{mean} {variance}");
    }

    #[test]
    fn a_target_with_noise_of_its_own_pulls_less() {
        let points = vec![vec![0.1, 0.5], vec![0.5, 0.5], vec![0.9, 0.5]];
        let exact = data(&points, &[0.0, 1.0, 0.0]);
        let noisy = FitInput {
            noises: &[0.0, 1.0, 0.0],
            ..data(&points, &[0.0, 1.0, 0.0])
        };
        let predicted = |data: &FitInput<'_>| {
            let hyper = Hyper::with_lengthscale(0.3, 2);
            Gp::new(data, hyper, None).unwrap().predict(&vec![0.5, 0.5])
        };
        let ((mean, variance), (pulled, wide)) = (predicted(&exact), predicted(&noisy));
        assert!((mean - 1.0).abs() < 0.01 && pulled < 0.9, "{mean} {pulled}");
        assert!(wide > 10.0 * variance, "{variance} {wide}");
        assert!(fit(&noisy, Effort::Rough).is_some());
    }
}
