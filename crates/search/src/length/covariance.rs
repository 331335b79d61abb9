//! How alike the losses of two trainings are.
//!
//! | name | meaning |
//! |---|---|
//! | T, T0 | tokens of a training; those of the shortest |
//! | t | ln(T / T0) |
//! | u | ln of the learning rate |
//! | z | u + p t: the rate as long trainings feel it; the best rate falls like T^-p |
//! | o | what else decides the loss; d2 is the squared distance of two such settings |
//! | m | Matern kernel of smoothness 5/2, by the squared distance |
//! | g | how fast settings part: the longer a training, the more they differ |
//! | x | share of a setting's value that a longer training changes |
//!
//! k = e^(g (t + t')) (m(d2) + m(dz2) + m(d2 + dz2)) / 3 ((1 - x) + x m(dt2)) + trend(t, t')
//!
//! The trend is that of all settings together: a power law of the tokens with unknown level and exponent, and what bends it,
//! as a floor does. It decides what loss is expected and hardly which setting is best.
//!
//! Design note: kernels that are smoother still are surer of rates, and of settings that were never trained longer: too sure.

use crate::gp::matern;

/// A training is longer than others where it is that many times as long.
pub(super) const LONGER: f64 = 1.5;
/// Prior of p: published exponents of the best rate are about -0.3.
const SHIFT: (f64, f64) = (0.3, 0.15);
const SHIFTS: [f64; 5] = [0.0, 0.15, 0.3, 0.45, 0.6];
/// Lengthscales of z: a factor of 2, 4 and 16 in the rate.
const RATE_SCALES: [f64; 3] = [0.7, 1.4, 2.8];
/// Prior of g.
const GROWTH: (f64, f64) = (0.15, 0.25);
const GROWTHS: [f64; 4] = [-0.2, 0.0, 0.2, 0.4];
/// x.
const CHANGES: [f64; 3] = [0.005, 0.02, 0.1];
/// Lengthscales of t: of a setting's own changes, and of what bends the trend.
const CHANGE_SCALE: f64 = 3.0;
const BEND_SCALE: f64 = 2.0;
/// Variances of the trend's level and exponent, in those of the signal.
const LEVEL: f64 = 100.0;
const EXPONENT: f64 = 0.25;
/// Distances beside the rate are of ranges of one.
const OTHERS_SCALE: f64 = 2.2;

/// One set of hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hyper {
    pub(super) shift: f64,
    pub(super) rate_scale: f64,
    pub(super) growth: f64,
    pub(super) change: f64,
}

impl Hyper {
    /// Hyper-parameters that are averaged over, with the logarithm of their prior.
    pub(super) fn grid() -> impl Iterator<Item = (Self, f64)> {
        let shifts = SHIFTS.into_iter();
        let scales = shifts.flat_map(|shift| RATE_SCALES.into_iter().map(move |scale| (shift, scale)));
        let growths = scales.flat_map(|(shift, scale)| GROWTHS.into_iter().map(move |growth| (shift, scale, growth)));
        let sets = growths.flat_map(|(shift, rate_scale, growth)| {
            CHANGES.into_iter().map(move |change| Self {
                shift,
                rate_scale,
                growth,
                change,
            })
        });
        sets.map(|hyper| (hyper, hyper.log_prior()))
    }

    fn log_prior(&self) -> f64 {
        let normal = |value: f64, (mean, deviation): (f64, f64)| -0.5 * ((value - mean) / deviation).powi(2);
        normal(self.shift, SHIFT) + normal(self.growth, GROWTH)
    }
}

/// A training: its setting beside the rate by number, u, t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) others: usize,
    pub(super) log_rate: f64,
    pub(super) log_tokens: f64,
}

/// Distances between the settings beside the rate.
#[derive(Clone, Debug)]
pub(super) struct Others {
    count: usize,
    squares: Vec<f64>,
}

impl Others {
    /// `square` is the squared distance of two of them, where each axis has a range of one.
    pub(super) fn new(count: usize, square: impl Fn(usize, usize) -> f64) -> Self {
        let scale = OTHERS_SCALE * OTHERS_SCALE;
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        let squares = pairs.map(|(a, b)| square(a, b) / scale).collect();
        Self { count, squares }
    }

    /// k of two trainings, without noise.
    pub(super) fn covariance(&self, hyper: &Hyper, a: Point, b: Point) -> f64 {
        let square = self.squares[a.others * self.count + b.others];
        let apart = a.log_tokens - b.log_tokens;
        let rates = (a.log_rate - b.log_rate + hyper.shift * apart) / hyper.rate_scale;
        let (rates, apart) = (rates * rates, apart * apart);
        let alike = (matern(square).0 + matern(rates).0 + matern(square + rates).0) / 3.0;
        let kept = 1.0 - hyper.change + hyper.change * matern(apart / (CHANGE_SCALE * CHANGE_SCALE)).0;
        let grown = (hyper.growth * (a.log_tokens + b.log_tokens)).exp();
        let bend = matern(apart / (BEND_SCALE * BEND_SCALE)).0;
        grown * alike * kept + LEVEL + EXPONENT * a.log_tokens * b.log_tokens + bend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_training_at_a_lower_rate_is_like_a_shorter_one_at_a_higher() {
        let others = Others::new(1, |_, _| 0.0);
        let (hyper, _) = Hyper::grid()
            .find(|(hyper, _)| hyper.shift == 0.3 && hyper.growth == 0.0)
            .unwrap();
        let at = |rate: f64, tokens: f64| Point {
            others: 0,
            log_rate: rate.ln(),
            log_tokens: tokens.ln(),
        };
        let long = at(0.001, 10.0);
        let like = |rate: f64| others.covariance(&hyper, long, at(rate, 1.0));
        assert!(like(0.002) > like(0.001) && like(0.002) > like(0.004));
    }
}
