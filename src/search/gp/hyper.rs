//! Hyper-parameters of a Gaussian process and what is believed of them before any data.
//!
//! Lengthscales have the dimension-scaled log-normal prior of Hvarfner, Hellsten and Nardi (2024), ln l ~ N(sqrt2 +
//! ln(D) / 2, 3), which BoTorch uses too: the more axes, the smoother each is taken to be. Targets are standardised, so the
//! signal variance is near 1; the noise is small (1% of a standard deviation) unless the data say otherwise.

use std::f64::consts::SQRT_2;

/// Least and greatest value of ln l.
const LENGTHSCALE_RANGE: (f64, f64) = (-4.0, 7.0);
/// Least and greatest value of ln s^2.
const VARIANCE_RANGE: (f64, f64) = (-5.0, 5.0);
/// Least and greatest value of ln sigma^2: from a deterministic measurement to nothing but noise.
const NOISE_RANGE: (f64, f64) = (-15.0, 0.5);
/// Location and scale of ln s^2.
const VARIANCE_PRIOR: (f64, f64) = (0.0, 1.0);
/// Location and scale of ln sigma^2.
const NOISE_PRIOR: (f64, f64) = (-9.2, 2.5);

/// Lengthscales, signal variance and noise variance, all positive.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::search) struct Hyper {
    /// One a used axis.
    pub(in crate::search) lengthscales: Vec<f64>,
    pub(in crate::search) variance: f64,
    pub(in crate::search) noise: f64,
}

impl Hyper {
    /// Lengthscales all at `lengthscale`, the rest at its prior's centre.
    pub(in crate::search) fn with_lengthscale(lengthscale: f64, axes: usize) -> Self {
        Self {
            lengthscales: vec![lengthscale; axes],
            variance: VARIANCE_PRIOR.0.exp(),
            noise: NOISE_PRIOR.0.exp(),
        }
    }

    /// theta_d = 1 / l_d^2.
    pub(super) fn theta(&self) -> Vec<f64> {
        self.lengthscales.iter().map(|l| 1.0 / (l * l)).collect()
    }

    /// ln l_1, ..., ln l_D, ln s^2, ln sigma^2.
    pub(super) fn to_logs(&self) -> Vec<f64> {
        let logs = self.lengthscales.iter().map(|l| l.ln());
        logs.chain([self.variance.ln(), self.noise.ln()]).collect()
    }

    /// The inverse of [`Hyper::to_logs`], each value moved into its range.
    pub(super) fn from_logs(logs: &[f64]) -> Self {
        let axes = logs.len() - 2;
        let at = |index: usize| {
            let (low, high) = range(index, axes);
            logs[index].clamp(low, high).exp()
        };
        Self {
            lengthscales: (0..axes).map(at).collect(),
            variance: at(axes),
            noise: at(axes + 1),
        }
    }

    /// Logarithm of the prior density (up to a constant) and its gradient by [`Hyper::to_logs`].
    pub(super) fn log_prior(&self) -> (f64, Vec<f64>) {
        let axes = self.lengthscales.len();
        let (location, scale) = lengthscale_prior(axes);
        let mut value = 0.0;
        let mut gradient = Vec::with_capacity(axes + 2);
        for log in self.to_logs().into_iter().enumerate() {
            let (index, log) = log;
            let (location, scale, density_over_value) = match index {
                index if index < axes => (location, scale, 1.0),
                index if index == axes => (VARIANCE_PRIOR.0, VARIANCE_PRIOR.1, 0.0),
                _ => (NOISE_PRIOR.0, NOISE_PRIOR.1, 0.0),
            };
            let z = (log - location) / scale;
            // The lengthscales' density is over l itself, as published: hence the further - ln l.
            value -= 0.5 * z * z + density_over_value * log;
            gradient.push(-z / scale - density_over_value);
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

/// Least and greatest value of element `index` of [`Hyper::to_logs`].
pub(super) fn range(index: usize, axes: usize) -> (f64, f64) {
    match index {
        index if index < axes => LENGTHSCALE_RANGE,
        index if index == axes => VARIANCE_RANGE,
        _ => NOISE_RANGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_back_and_kept_in_range() {
        let hyper = Hyper {
            lengthscales: vec![0.3, 2.0],
            variance: 1.5,
            noise: 1e-4,
        };
        let back = Hyper::from_logs(&hyper.to_logs());
        for (a, b) in hyper.to_logs().iter().zip(back.to_logs()) {
            assert!((a - b).abs() < 1e-12);
        }
        assert!(
            Hyper::from_logs(&[900.0, -900.0, 0.0, 900.0])
                .to_logs()
                .iter()
                .all(|log| log.is_finite())
        );
    }

    #[test]
    fn the_prior_gradient_is_its_derivative_and_vanishes_at_the_likely_lengthscale() {
        let hyper = Hyper::with_lengthscale(likely_lengthscale(3), 3);
        assert!(hyper.log_prior().1.iter().all(|slope| slope.abs() < 1e-12));
        let logs = [0.2, -1.0, 3.0, 0.4, -6.0];
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
