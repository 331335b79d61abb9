//! The most probable hyper-parameters given the data (maximum a posteriori), by L-BFGS from several starts.
//!
//! Minimised is, with y's constant mean mu profiled out (generalised least squares, so its derivative vanishes),
//! 1/2 (y - mu)^T K^-1 (y - mu) + 1/2 ln|K| + n/2 ln 2pi - ln prior
//! with the gradient -1/2 tr((alpha alpha^T - K^-1) dK) - d ln prior (Rasmussen and Williams 2006, equation 5.9).

use std::cell::RefCell;

use argmin::core::{CostFunction, Executor, Gradient, State};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::{Mat, MatMut, Par};
use rayon::prelude::*;

use super::covariance::{Distances, dot, matern};
use super::hyper::{Hyper, likely_lengthscale, range};
use crate::encode::{Axis, Point};

/// L-BFGS iterations of one start.
const ITERATIONS: u64 = 40;
/// Change of the cost a point under which a descent ends.
const LEAST_GAIN: f64 = 1e-6;
/// Vectors that L-BFGS remembers.
const MEMORY: usize = 8;
/// Added to the diagonal, relative to the signal variance, so that equal points do not make K singular.
const JITTER: f64 = 1e-9;
/// Slope of the wall around the range of each hyper-parameter.
const WALL: f64 = 1.0;
/// Starting lengthscales beside the prior's most likely one.
const STARTS: [f64; 2] = [0.25, 1.5];

/// Points, standardised targets and the axes that may matter, which hyper-parameters are fitted to.
pub(crate) struct FitInput<'a> {
    pub(crate) axes: &'a [Axis],
    /// Indices of the axes that the targets may depend on.
    pub(crate) used: &'a [usize],
    pub(crate) points: &'a [Point],
    pub(crate) targets: &'a [f64],
    /// Noise variance of each target beside the fitted one; empty where there is none.
    pub(crate) noises: &'a [f64],
}

/// Fitted hyper-parameters and how well they explain the data.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) hyper: Hyper,
    /// Logarithm of the posterior density of the hyper-parameters, up to the evidence.
    pub(crate) log_posterior: f64,
}

/// Number of starts that a fit has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The prior's most likely lengthscale only.
    Rough,
    /// Short and long lengthscales too.
    Whole,
}

/// Fits hyper-parameters, the starts in parallel; the result does not depend on the number of threads. `None` without data.
pub(crate) fn fit(data: &FitInput<'_>, effort: Effort) -> Option<Fit> {
    if data.points.is_empty() {
        return None;
    }
    let objective = Objective::new(data);
    let axes = data.used.len();
    let further = STARTS.into_iter().filter(|_| effort == Effort::Whole);
    let lengthscales = std::iter::once(likely_lengthscale(axes)).chain(further);
    let starts: Vec<Hyper> = lengthscales
        .map(|lengthscale| Hyper::with_lengthscale(lengthscale, axes))
        .collect();
    let fits: Vec<Fit> = starts.par_iter().map(|start| objective.descend(start)).collect();
    fits.into_iter()
        .max_by(|a, b| a.log_posterior.total_cmp(&b.log_posterior))
}

/// The negative log posterior of the hyper-parameters.
#[derive(Clone, Debug)]
struct Objective {
    distances: Distances,
    targets: Vec<f64>,
    noises: Vec<f64>,
}

impl Objective {
    fn new(data: &FitInput<'_>) -> Self {
        Self {
            distances: Distances::new(data.axes, data.used, data.points),
            targets: data.targets.to_vec(),
            noises: data.noises.to_vec(),
        }
    }

    fn descend(&self, start: &Hyper) -> Fit {
        let scale = 1.0 / self.targets.len() as f64;
        let start_logs = start.to_logs();
        let walled = Walled {
            objective: self,
            scale,
            last: RefCell::new(None),
        };
        let solver = LBFGS::new(MoreThuenteLineSearch::new(), MEMORY)
            .with_tolerance_grad(1e-4)
            .and_then(|solver| solver.with_tolerance_cost(LEAST_GAIN));
        // A line search that finds no step is an end like any other: what the start gives is then kept.
        let best = solver.and_then(|solver| {
            let result = Executor::new(walled, solver)
                .configure(|state| state.param(start_logs.clone()).max_iters(ITERATIONS))
                .timer(false)
                .run()?;
            Ok(result.state().get_best_param().cloned())
        });
        let logs = best.ok().flatten().unwrap_or(start_logs);
        let hyper = Hyper::from_logs(&logs);
        let log_posterior = self.evaluate(&hyper).map_or(f64::NEG_INFINITY, |(value, _)| -value);
        Fit { hyper, log_posterior }
    }

    /// Value and gradient by [`Hyper::to_logs`]; `None` where K is not positive definite.
    fn evaluate(&self, hyper: &Hyper) -> Option<(f64, Vec<f64>)> {
        let n = self.targets.len();
        let theta = hyper.theta();
        let r2 = self.distances.scaled(&theta);
        let (mut factor, kernel) = self.covariance(hyper, &r2);
        let mut memory = MemBuffer::new(
            llt::factor::cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default())
                .or(llt::inverse::inverse_scratch::<f64>(n, Par::Seq)),
        );
        let stack = MemStack::new(&mut memory);
        let view = factor.as_mut();
        llt::factor::cholesky_in_place(view, Default::default(), Par::Seq, stack, Default::default()).ok()?;
        let mut inverse = Mat::<f64>::zeros(n, n);
        llt::inverse::inverse(inverse.as_mut(), factor.as_ref(), Par::Seq, stack);
        mirror(inverse.as_mut());
        let (alpha, fit) = self.weights(&inverse);
        let half_log_determinant: f64 = (0..n).map(|i| factor[(i, i)].ln()).sum();
        let (prior, prior_gradient) = hyper.log_prior();
        let value = 0.5 * fit + half_log_determinant + 0.5 * n as f64 * (2.0 * std::f64::consts::PI).ln() - prior;
        let mut gradient = self.gradient(hyper, &theta, &kernel, &inverse, &alpha);
        for (slope, prior) in gradient.iter_mut().zip(prior_gradient) {
            *slope -= prior;
        }
        value.is_finite().then_some((value, gradient))
    }

    /// The lower triangle of K; m and dm/d(r^2) of every pair.
    fn covariance(&self, hyper: &Hyper, r2: &[f64]) -> (Mat<f64>, Vec<(f64, f64)>) {
        let n = self.targets.len();
        let mut k = Mat::<f64>::zeros(n, n);
        let kernel: Vec<(f64, f64)> = r2.iter().map(|r2| matern(*r2)).collect();
        let additive = self.distances.additive(&hyper.weights);
        let mut pairs = kernel.iter().zip(&additive);
        for i in 0..n {
            for (j, ((m, _), sum)) in (0..i).zip(&mut pairs) {
                k[(i, j)] = hyper.variance * m + sum;
            }
            k[(i, i)] = hyper.total_variance() + JITTER * hyper.variance + hyper.noise;
            k[(i, i)] += self.noises.get(i).copied().unwrap_or(0.0);
        }
        (k, kernel)
    }

    /// alpha = K^-1 (y - mu) with mu = 1^T K^-1 y / 1^T K^-1 1, and (y - mu)^T alpha.
    fn weights(&self, inverse: &Mat<f64>) -> (Vec<f64>, f64) {
        let n = self.targets.len();
        let row = |values: &dyn Fn(usize) -> f64, i: usize| -> f64 {
            let column = inverse.col_as_slice(i);
            (0..n).map(|j| column[j] * values(j)).sum()
        };
        let ones: Vec<f64> = (0..n).map(|i| row(&|_| 1.0, i)).collect();
        let total: f64 = ones.iter().sum();
        let mean = ones.iter().zip(&self.targets).map(|(w, y)| w * y).sum::<f64>() / total;
        let alpha: Vec<f64> = (0..n).map(|i| row(&|j| self.targets[j] - mean, i)).collect();
        let fit = alpha.iter().zip(&self.targets).map(|(a, y)| a * (y - mean)).sum();
        (alpha, fit)
    }

    fn gradient(
        &self,
        hyper: &Hyper,
        theta: &[f64],
        kernel: &[(f64, f64)],
        inverse: &Mat<f64>,
        alpha: &[f64],
    ) -> Vec<f64> {
        let n = self.targets.len();
        // Per pair: w = alpha alpha^T - K^-1, and w dm/d(r^2); each axis then is a dot product with its distances.
        let mut plain = Vec::with_capacity(kernel.len());
        let mut weighted = Vec::with_capacity(kernel.len());
        let (mut by_variance, mut by_noise) = (0.0, 0.0);
        let mut pairs = kernel.iter();
        for i in 0..n {
            let column = inverse.col_as_slice(i);
            for (j, (m, slope)) in (0..i).zip(&mut pairs) {
                let w = alpha[i] * alpha[j] - column[j];
                plain.push(w);
                weighted.push(w * slope);
                by_variance -= w * m;
            }
            let w = alpha[i] * alpha[i] - column[i];
            by_variance -= 0.5 * w * (1.0 + JITTER);
            by_noise -= 0.5 * w;
        }
        let by_axis = self.distances.axes.iter().zip(theta);
        let by_axis = by_axis.map(|(squares, theta)| 2.0 * theta * hyper.variance * dot(&weighted, squares));
        let by_weight = self.distances.alone.iter().zip(&hyper.weights);
        let by_weight = by_weight.map(|(alone, weight)| weight * (by_noise - dot(&plain, alone)));
        by_axis
            .chain(by_weight)
            .chain([by_variance * hyper.variance, by_noise * hyper.noise])
            .collect()
    }
}

/// Copies the strict lower triangle to the upper one.
fn mirror(mut matrix: MatMut<'_, f64>) {
    for i in 0..matrix.nrows() {
        for j in 0..i {
            matrix[(j, i)] = matrix[(i, j)];
        }
    }
}

/// A point, the cost there and its gradient.
type Evaluated = (Vec<f64>, f64, Vec<f64>);

/// The objective as argmin takes it: without bounds. Outside its range a hyper-parameter stays at the range's end and a
/// quadratic wall leads back.
struct Walled<'a> {
    objective: &'a Objective,
    /// One over the number of points: steps of the line search are then of order one.
    scale: f64,
    /// Cost and gradient come together but are asked for one after the other.
    last: RefCell<Option<Evaluated>>,
}

impl Walled<'_> {
    fn at(&self, logs: &[f64]) -> (f64, Vec<f64>) {
        if let Some((_, value, gradient)) = self.last.borrow().as_ref().filter(|(at, ..)| at == logs) {
            return (*value, gradient.clone());
        }
        let hyper = Hyper::from_logs(logs);
        let (mut value, mut gradient) = match self.objective.evaluate(&hyper) {
            Some((value, gradient)) => (value * self.scale, gradient),
            None => (1e10, vec![0.0; logs.len()]),
        };
        for (index, log) in logs.iter().enumerate() {
            gradient[index] *= self.scale;
            let (low, high) = range(index, (logs.len() - 2) / 2);
            let beyond = log - log.clamp(low, high);
            if beyond != 0.0 {
                value += WALL * beyond * beyond;
                gradient[index] = 2.0 * WALL * beyond;
            }
        }
        *self.last.borrow_mut() = Some((logs.to_vec(), value, gradient.clone()));
        (value, gradient)
    }
}

impl CostFunction for Walled<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logs: &Vec<f64>) -> Result<f64, argmin::core::Error> {
        Ok(self.at(logs).0)
    }
}

impl Gradient for Walled<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, logs: &Vec<f64>) -> Result<Vec<f64>, argmin::core::Error> {
        Ok(self.at(logs).1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden::*;
    use super::*;
    use crate::sobol::sobol_point;

    fn objective(points: &[Point], targets: &[f64]) -> Objective {
        let axes: Vec<Axis> = points[0].iter().map(|_| Axis::Number).collect();
        let used: Vec<usize> = (0..axes.len()).collect();
        Objective::new(&FitInput {
            axes: &axes,
            used: &used,
            points,
            targets,
            noises: &[],
        })
    }

    #[test]
    fn the_evidence_is_scikit_learns() {
        let points: Vec<Point> = GOLDEN_POINTS.iter().map(|point| point.to_vec()).collect();
        let hyper = Hyper {
            lengthscales: GOLDEN_LENGTHSCALES.to_vec(),
            weights: GOLDEN_WEIGHTS.to_vec(),
            variance: GOLDEN_VARIANCE,
            noise: GOLDEN_NOISE,
        };
        // Centred targets and their mirror image make the profiled mean zero, as scikit-learn's is.
        let (value, _) = objective(&points, &GOLDEN_TARGETS).evaluate(&hyper).unwrap();
        let evidence = -value - hyper.log_prior().0;
        assert!((evidence - GOLDEN_EVIDENCE_WITH_MEAN).abs() < 1e-5, "{evidence}");
    }

    #[test]
    fn the_gradient_is_the_derivative() {
        let points: Vec<Point> = (0..12).map(|index| sobol_point(index, 3, 1)).collect();
        let targets: Vec<f64> = points
            .iter()
            .map(|p| (5.0 * p[0]).sin() + p[1] * p[1] - 0.3 * p[2])
            .collect();
        let objective = objective(&points, &targets);
        let logs = [-0.5, 0.3, 1.0, -2.0, -1.0, -4.0, 0.2, -4.0];
        let (_, gradient) = objective.evaluate(&Hyper::from_logs(&logs)).unwrap();
        for index in 0..logs.len() {
            let shifted = |step: f64| {
                let mut logs = logs;
                logs[index] += step;
                objective.evaluate(&Hyper::from_logs(&logs)).unwrap().0
            };
            let numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            assert!(
                (numeric - gradient[index]).abs() < 1e-5 * numeric.abs().max(1.0),
                "{index}"
            );
        }
    }

    #[test]
    fn an_axis_that_matters_gets_a_shorter_lengthscale_whatever_the_threads() {
        let points: Vec<Point> = (0..30).map(|index| sobol_point(index, 2, 1)).collect();
        let targets: Vec<f64> = points.iter().map(|p| 1.4 * (9.0 * p[0]).sin()).collect();
        let data = FitInput {
            axes: &[Axis::Number, Axis::Number],
            used: &[0, 1],
            points: &points,
            targets: &targets,
            noises: &[],
        };
        let one = fit(&data, Effort::Whole).unwrap();
        assert!(
            one.hyper.lengthscales[0] < 0.3 * one.hyper.lengthscales[1],
            "{:?}",
            one.hyper
        );
        assert!(one.hyper.noise < 1e-3);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(pool.install(|| fit(&data, Effort::Whole).unwrap()).hyper, one.hyper);
    }

    #[test]
    fn no_data_gives_no_fit() {
        let data = FitInput {
            axes: &[Axis::Number],
            used: &[0],
            points: &[],
            targets: &[],
            noises: &[],
        };
        assert!(fit(&data, Effort::Whole).is_none());
    }
}
