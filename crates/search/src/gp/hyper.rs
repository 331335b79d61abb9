//! Hyper-parameters of a Gaussian process and what is believed of them before any data.
//!
//! Lengthscales have the dimension-scaled log-normal prior of Hvarfner, Hellsten and Nardi (2024), ln l ~ N(sqrt2 +
//! ln(D) / 2, 3), which BoTorch uses too: the more axes, the smoother each is taken to be. Targets are standardised, so the
//! variances are of order 1 in sum; the noise is small (1% of a standard deviation) unless the data say otherwise.

use std::f64::consts::SQRT_2;

/// Least and greatest value of ln l.
const LENGTHSCALE_RANGE: (f64, f64) = (-4.0, 7.0);
/// Least and greatest value of ln a.
const WEIGHT_RANGE: (f64, f64) = (-12.0, 4.0);
/// Least and greatest value of ln s^2.
const VARIANCE_RANGE: (f64, f64) = (-5.0, 5.0);
/// Least and greatest value of ln sigma^2: from a deterministic measurement to nothing but noise.
const NOISE_RANGE: (f64, f64) = (-15.0, 0.5);
/// Location and scale of ln a: each axis is expected to act by itself as well as together with others.
const WEIGHT_PRIOR: (f64, f64) = (-1.5, 2.0);
/// Location and scale of ln s^2.
const VARIANCE_PRIOR: (f64, f64) = (0.0, 1.0);
/// Location and scale of ln sigma^2.
const NOISE_PRIOR: (f64, f64) = (-9.2, 2.5);

/// Lengthscales, weights, signal variance and noise variance, all positive.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hyper {
    /// One a used axis.
    pub(crate) lengthscales: Vec<f64>,
    /// Variance a of each used axis acting alone.
    pub(crate) weights: Vec<f64>,
    pub(crate) variance: f64,
    pub(crate) noise: f64,
}

impl Hyper {
    /// Lengthscales all at `lengthscale`, the rest at its prior's centre.
    pub(crate) fn with_lengthscale(lengthscale: f64, axes: usize) -> Self {
        Self {
            lengthscales: vec![lengthscale; axes],
            weights: vec![WEIGHT_PRIOR.0.exp(); axes],
            variance: VARIANCE_PRIOR.0.exp(),
            noise: NOISE_PRIOR.0.exp(),
        }
    }

    /// theta_d = 1 / l_d^2.
    pub(super) fn theta(&self) -> Vec<f64> {
        self.lengthscales.iter().map(|l| 1.0 / (l * l)).collect()
    }

    /// The prior variance of the function at any point: s^2 and the weights.
    pub(super) fn total_variance(&self) -> f64 {
        self.variance + self.weights.iter().sum::<f64>()
    }

    /// ln l_1, ..., ln l_D, ln a_1, ..., ln a_D, ln s^2, ln sigma^2.
    pub(super) fn to_logs(&self) -> Vec<f64> {
        let values = self.lengthscales.iter().chain(&self.weights);
        values
            .chain([&self.variance, &self.noise])
            .map(|value| value.ln())
            .collect()
    }

    /// The inverse of [`Hyper::to_logs`], each value moved into its range.
    pub(super) fn from_logs(logs: &[f64]) -> Self {
        let axes = (logs.len() - 2) / 2;
        let at = |index: usize| {
            let (low, high) = range(index, axes);
            logs[index].clamp(low, high).exp()
        };
        Self {
            lengthscales: (0..axes).map(at).collect(),
            weights: (axes..2 * axes).map(at).collect(),
            variance: at(2 * axes),
            noise: at(2 * axes + 1),
        }
    }

    /// Logarithm of the prior density (up to a constant) and its gradient by [`Hyper::to_logs`].
    pub(super) fn log_prior(&self) -> (f64, Vec<f64>) {
        let axes = self.lengthscales.len();
        let mut value = 0.0;
        let mut gradient = Vec::with_capacity(2 * axes + 2);
        for (index, log) in self.to_logs().into_iter().enumerate() {
            let (location, scale) = match Kind::of(index, axes) {
                Kind::Lengthscale => lengthscale_prior(axes),
                Kind::Weight => WEIGHT_PRIOR,
                Kind::Variance => VARIANCE_PRIOR,
                Kind::Noise => NOISE_PRIOR,
            };
            let z = (log - location) / scale;
            // The lengthscales' density is over l itself, as published: hence the further - ln l.
            let over_value = f64::from(u8::from(index < axes));
            value -= 0.5 * z * z + over_value * log;
            gradient.push(-z / scale - over_value);
        }
        (value, gradient)
    }
}

/// The prior's most likely lengthscale.
pub(super) fn likely_lengthscale(axes: usize) -> f64 {
    let (location, scale) = lengthscale_prior(axes);
    (location - scale * scale).exp()
}

fn lengthscale_prior(axes: usize) -> (f64, f64) {
    (SQRT_2 + 0.5 * (axes.max(1) as f64).ln(), 3f64.sqrt())
}

/// Meaning of an element of [`Hyper::to_logs`].
enum Kind {
    Lengthscale,
    Weight,
    Variance,
    Noise,
}

impl Kind {
    fn of(index: usize, axes: usize) -> Self {
        match index {
            index if index < axes => Self::Lengthscale,
            index if index < 2 * axes => Self::Weight,
            index if index == 2 * axes => Self::Variance,
            _ => Self::Noise,
        }
    }
}

/// Least and greatest value of element `index` of [`Hyper::to_logs`].
pub(super) fn range(index: usize, axes: usize) -> (f64, f64) {
    match Kind::of(index, axes) {
        Kind::Lengthscale => LENGTHSCALE_RANGE,
        Kind::Weight => WEIGHT_RANGE,
        Kind::Variance => VARIANCE_RANGE,
        Kind::Noise => NOISE_RANGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_back_and_kept_in_range() {
        let hyper = Hyper {
            lengthscales: vec![0.3, 2.0],
            weights: vec![0.1, 0.2],
            variance: 1.5,
            noise: 1e-4,
        };
        let back = Hyper::from_logs(&hyper.to_logs());
        for (a, b) in hyper.to_logs().iter().zip(back.to_logs()) {
            assert!((a - b).abs() < 1e-12);
        }
        assert!(
            Hyper::from_logs(&[900.0, -900.0, 0.0, 900.0, -900.0, 900.0])
                .to_logs()
                .iter()
                .all(|log| log.is_finite())
        );
    }

    #[test]
    fn the_prior_gradient_is_its_derivative_and_vanishes_at_the_likely_lengthscale() {
        let hyper = Hyper::with_lengthscale(likely_lengthscale(3), 3);
        assert!(hyper.log_prior().1.iter().all(|slope| slope.abs() < 1e-12));
        let logs = [0.2, -1.0, -2.0, 0.5, 0.4, -6.0];
        let gradient = Hyper::from_logs(&logs).log_prior().1;
        for index in 0..logs.len() {
            let shifted = |step: f64| {
                let mut logs = logs;
                logs[index] += step;
                Hyper::from_logs(&logs).log_prior().0
            };
            let numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            assert!((numeric - gradient[index]).abs() < 1e-8);
        }
    }
}
