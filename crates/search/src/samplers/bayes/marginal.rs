//! The predicted distribution of one value that is minimised, and what it promises below a bound.
//!
//! | name | meaning |
//! |---|---|
//! | W ~ N(m, s^2) | the modelled quantity |
//! | Y | the value: W itself, exp(W), or -exp(-W) for a maximised metric modelled by its logarithm |
//! | u, d | a bound on Y; the bound on W in standard deviations from m |
//! | P(u) | E[max(u - Y, 0)], the expected improvement over u |
//!
//! Y grows with W in all three forms. For logarithms P is the Black-Scholes formula of a put or a call; both are written as
//! u phi(d) times a difference of Mills ratios, which stays exact where P underflows.

use crate::normal::{
    cumulative, density, improvement, log_cumulative, log_density, log_improvement, log_improvement_slope, mills,
};

/// Bound d beyond which the plain form of a log-normal P has no cancellation left.
const PLAIN: f64 = 5.0;
/// Deviation of the logarithm below which the Mills difference is replaced by its derivative.
const NARROW: f64 = 1e-3;

/// Form in which the modelled quantity becomes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Y = W.
    Plain,
    /// Y = exp(W): a positive metric that is minimised.
    Log,
    /// Y = -exp(-W): a positive metric that is maximised, with its sign changed.
    MinusLog,
}

impl Shape {
    /// W of a value, or `None` where this shape cannot give the value.
    pub(crate) fn inner(self, value: f64) -> Option<f64> {
        let inner = match self {
            Self::Plain => value,
            Self::Log => value.ln(),
            Self::MinusLog => -(-value).ln(),
        };
        inner.is_finite().then_some(inner)
    }

    /// |dW / dY| at a value.
    pub(crate) fn inner_slope(self, value: f64) -> f64 {
        match self {
            Self::Plain => 1.0,
            Self::Log | Self::MinusLog => 1.0 / value.abs(),
        }
    }

    /// The value at W (the median of Y where W is a mean).
    pub(crate) fn outer(self, inner: f64) -> f64 {
        match self {
            Self::Plain => inner,
            Self::Log => inner.exp(),
            Self::MinusLog => -(-inner).exp(),
        }
    }
}

/// A predicted value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Marginal {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) shape: Shape,
}

/// ln P(u) with its derivatives by mean and deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LogShare {
    pub(crate) value: f64,
    pub(crate) by_mean: f64,
    pub(crate) by_deviation: f64,
}

/// The part of a bound that nothing can reach.
pub(crate) const NOTHING: LogShare = LogShare {
    value: f64::NEG_INFINITY,
    by_mean: 0.0,
    by_deviation: 0.0,
};

impl Marginal {
    /// P(u) in plain numbers: fast, and 0 where it underflows.
    pub(crate) fn improvement(&self, bound: f64) -> f64 {
        let s = self.deviation;
        match self.shape {
            Shape::Plain => s * improvement((bound - self.mean) / s),
            Shape::Log if bound <= 0.0 => 0.0,
            Shape::Log => {
                let d = (bound.ln() - self.mean) / s;
                (bound * cumulative(d) - (self.mean + 0.5 * s * s).exp() * cumulative(d - s)).max(0.0)
            }
            Shape::MinusLog => {
                let expected = (-self.mean + 0.5 * s * s).exp();
                if bound >= 0.0 {
                    return bound + expected;
                }
                let d = ((-bound).ln() + self.mean) / s;
                (expected * cumulative(s - d) + bound * cumulative(-d)).max(0.0)
            }
        }
    }

    /// ln P(u), exact however small, with derivatives.
    pub(crate) fn log_improvement(&self, bound: f64) -> LogShare {
        match self.shape {
            Shape::Plain => {
                let s = self.deviation;
                let z = (bound - self.mean) / s;
                let slope = log_improvement_slope(z);
                LogShare {
                    value: s.ln() + log_improvement(z),
                    by_mean: -slope / s,
                    by_deviation: (1.0 - z * slope) / s,
                }
            }
            Shape::Log => self.log_put(bound),
            Shape::MinusLog => self.log_call(bound),
        }
    }

    /// ln E[max(u - exp(W), 0)].
    fn log_put(&self, bound: f64) -> LogShare {
        if bound <= 0.0 {
            return NOTHING;
        }
        let s = self.deviation;
        let d = (bound.ln() - self.mean) / s;
        if d > PLAIN {
            let expected = (self.mean + 0.5 * s * s).exp();
            let value = bound * cumulative(d) - expected * cumulative(d - s);
            return LogShare {
                value: value.ln(),
                by_mean: -expected * cumulative(d - s) / value,
                by_deviation: expected * (density(d - s) - s * cumulative(d - s)) / value,
            };
        }
        let difference = mills_difference(-d, s);
        let far = mills(s - d);
        LogShare {
            value: bound.ln() + log_density(d) + difference.ln(),
            by_mean: -far / difference,
            by_deviation: (1.0 - s * far) / difference,
        }
    }

    /// ln E[max(u + exp(-W), 0)].
    fn log_call(&self, bound: f64) -> LogShare {
        let s = self.deviation;
        let expected = (-self.mean + 0.5 * s * s).exp();
        if bound >= 0.0 {
            let value = bound + expected;
            return LogShare {
                value: value.ln(),
                by_mean: -expected / value,
                by_deviation: s * expected / value,
            };
        }
        let d = ((-bound).ln() + self.mean) / s;
        if d < -PLAIN {
            let value = expected * cumulative(s - d) + bound * cumulative(-d);
            return LogShare {
                value: value.ln(),
                by_mean: -expected * cumulative(s - d) / value,
                by_deviation: expected * (density(d - s) + s * cumulative(s - d)) / value,
            };
        }
        let difference = mills_difference(d - s, s);
        let near = mills(d - s);
        LogShare {
            value: (-bound).ln() + log_density(d) + difference.ln(),
            by_mean: -near / difference,
            by_deviation: (1.0 + s * near) / difference,
        }
    }

    /// ln P(Y <= bound) with derivatives.
    pub(crate) fn log_below(&self, bound: f64) -> LogShare {
        let Some(inner) = self.inner_bound(bound) else {
            // A bound that the shape cannot reach: everything or nothing lies below it.
            let all = self.shape == Shape::MinusLog;
            return if all {
                LogShare { value: 0.0, ..NOTHING }
            } else {
                NOTHING
            };
        };
        let z = (inner - self.mean) / self.deviation;
        let slope = (log_density(z) - log_cumulative(z)).exp();
        LogShare {
            value: log_cumulative(z),
            by_mean: -slope / self.deviation,
            by_deviation: -slope * z / self.deviation,
        }
    }

    /// ln P(Y >= bound) with derivatives.
    pub(crate) fn log_above(&self, bound: f64) -> LogShare {
        let Some(inner) = self.inner_bound(bound) else {
            let all = self.shape == Shape::Log;
            return if all {
                LogShare { value: 0.0, ..NOTHING }
            } else {
                NOTHING
            };
        };
        let z = (self.mean - inner) / self.deviation;
        let slope = (log_density(z) - log_cumulative(z)).exp();
        LogShare {
            value: log_cumulative(z),
            by_mean: slope / self.deviation,
            by_deviation: -slope * z / self.deviation,
        }
    }

    fn inner_bound(&self, bound: f64) -> Option<f64> {
        self.shape.inner(bound)
    }

    /// The median of Y.
    pub(crate) fn median(&self) -> f64 {
        self.shape.outer(self.mean)
    }
}

/// M(x) - M(x + s), also for an s so small that the two are equal in all digits but the last.
fn mills_difference(x: f64, s: f64) -> f64 {
    if s < NARROW {
        let middle = x + 0.5 * s;
        // M'(y) = y M(y) - 1; h(-y) / phi(y) is the exact form of 1 - y M(y).
        return s * (log_improvement(-middle) - log_density(middle)).exp();
    }
    mills(x) - mills(x + s)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 3] = [Shape::Plain, Shape::Log, Shape::MinusLog];

    fn marginals() -> impl Iterator<Item = (Marginal, f64)> {
        SHAPES.into_iter().flat_map(|shape| {
            [(0.3, 0.5), (0.3, 1e-4), (-2.0, 0.01), (1.0, 1.2)]
                .into_iter()
                .flat_map(move |(mean, deviation)| {
                    [-12.0, -5.1, -4.9, -1.0, 0.0, 0.5, 3.0, 5.1, 20.0]
                        .into_iter()
                        .map(move |z| {
                            let marginal = Marginal { mean, deviation, shape };
                            (marginal, shape.outer(mean + z * deviation))
                        })
                })
        })
    }

    #[test]
    fn logarithm_and_plain_form_agree() {
        for (marginal, bound) in marginals() {
            let (plain, log) = (marginal.improvement(bound), marginal.log_improvement(bound));
            // The plain form loses digits where it is a small difference of large numbers.
            if plain > 1e-9 * marginal.median().abs().max(1e-3) {
                assert!(
                    (plain.ln() - log.value).abs() < 2e-4,
                    "{marginal:?} {bound}: {plain} {log:?}"
                );
            }
            assert!(log.value.is_finite(), "{marginal:?} {bound}");
        }
    }

    #[test]
    fn derivatives_are_differences() {
        for (marginal, bound) in marginals() {
            type LogPartOf = fn(&Marginal, f64) -> LogShare;
            let parts: [LogPartOf; 3] = [Marginal::log_improvement, Marginal::log_below, Marginal::log_above];
            for part in parts {
                let at = part(&marginal, bound);
                let step = 1e-4 * marginal.deviation;
                let moved = |mean: f64, deviation: f64| {
                    let marginal = Marginal {
                        mean: marginal.mean + mean,
                        deviation: marginal.deviation + deviation,
                        ..marginal
                    };
                    part(&marginal, bound).value
                };
                let by_mean = (moved(step, 0.0) - moved(-step, 0.0)) / (2.0 * step);
                let by_deviation = (moved(0.0, step) - moved(0.0, -step)) / (2.0 * step);
                let close =
                    |a: f64, b: f64| (a - b).abs() * marginal.deviation < 2e-3 * (1.0 + a.abs() * marginal.deviation);
                assert!(close(by_mean, at.by_mean), "{marginal:?} {bound}: {by_mean} {at:?}");
                assert!(
                    close(by_deviation, at.by_deviation),
                    "{marginal:?} {bound}: {by_deviation} {at:?}"
                );
            }
        }
    }

    #[test]
    fn expectations_match_integration() {
        for (marginal, bound) in marginals() {
            let steps = 40_000;
            let integral: f64 = (0..steps)
                .map(|step| {
                    let z = -10.0 + 20.0 * (f64::from(step) + 0.5) / f64::from(steps);
                    let value = marginal.shape.outer(marginal.mean + z * marginal.deviation);
                    (bound - value).max(0.0) * density(z) * 20.0 / f64::from(steps)
                })
                .sum();
            let ours = marginal.log_improvement(bound).value.exp();
            assert!(
                (ours - integral).abs() <= 1e-4 * integral + 1e-12,
                "{marginal:?} {bound}: {ours} {integral}"
            );
        }
    }

    #[test]
    fn bounds_that_a_shape_cannot_reach_hold_always_or_never() {
        let log = Marginal {
            mean: 0.0,
            deviation: 1.0,
            shape: Shape::Log,
        };
        assert_eq!(log.log_below(-1.0).value, f64::NEG_INFINITY);
        assert_eq!(log.log_above(-1.0).value, 0.0);
        assert_eq!(log.log_improvement(0.0), NOTHING);
        let minus = Marginal {
            shape: Shape::MinusLog,
            ..log
        };
        assert_eq!(minus.log_below(1.0).value, 0.0);
        assert!((minus.improvement(1.0) - (1.0 + 0.5f64.exp())).abs() < 1e-12);
    }
}
