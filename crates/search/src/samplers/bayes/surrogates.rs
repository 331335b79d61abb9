//! The surrogates of all modelled metrics, and the limits that their values have to keep.

use super::marginal::{LogShare, Marginal};
use super::output::Output;
use crate::encode::Point;

/// ln of the least probability of keeping every limit with which a setting counts.
pub(super) const LIKELY: f64 = -0.693;

/// A limit on a modelled value, minimised like the value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

/// What the next trial is predicted from.
pub(super) struct Surrogates<'a> {
    /// Surrogates of the modelled metrics, objectives first.
    pub(super) outputs: Vec<Output>,
    pub(super) objectives: usize,
    /// Limits that a setting has to keep, each with the index of its output.
    pub(super) limits: Vec<(usize, Limit)>,
    /// Shifts of every output by the prior at a point, or `None` where the point is certain to fail.
    pub(super) shifts: Option<&'a Shifts<'a>>,
}

/// Shifts of every output by the prior at a point; `None` where the point is certain to fail.
pub(super) type Shifts<'a> = dyn Fn(&Point) -> Option<Vec<f64>> + Sync + 'a;

impl Surrogates<'_> {
    /// Shifts of every output at a point; `None` where it is certain to fail.
    pub(super) fn shifts_at(&self, point: &Point) -> Option<Vec<f64>> {
        match self.shifts {
            None => Some(vec![0.0; self.outputs.len()]),
            Some(shifts) => shifts(point),
        }
    }

    /// The predicted values at a point.
    pub(super) fn marginals(&self, point: &Point) -> Option<Vec<Marginal>> {
        let shifts = self.shifts_at(point)?;
        let outputs = self.outputs.iter().zip(shifts);
        Some(
            outputs
                .map(|(output, shift)| output.marginal(output.gp().predict(point), shift))
                .collect(),
        )
    }

    /// ln of the probability that every limit is kept.
    pub(super) fn log_kept(&self, marginals: &[Marginal]) -> f64 {
        self.log_kept_of(marginals, |_| true)
    }

    /// ln P(the limits of the outputs of which `counts` says so are kept).
    pub(super) fn log_kept_of(&self, marginals: &[Marginal], counts: impl Fn(usize) -> bool) -> f64 {
        let limits = self.limits.iter().filter(|(output, _)| counts(*output));
        limits
            .map(|(output, limit)| limit.log_kept(&marginals[*output]).value)
            .sum()
    }
}

impl Limit {
    /// ln of the probability that a value keeps the limit, with its derivatives.
    pub(super) fn log_kept(self, marginal: &Marginal) -> LogShare {
        match self {
            Self::AtMost(limit) => marginal.log_below(limit),
            Self::AtLeast(limit) => marginal.log_above(limit),
        }
    }
}
