//! Ranges that a search widened by itself, and what they make of a search space.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Bounds, Distribution, RangeEnd, Scale, SearchSpace};
use crate::study::{ParamValue, TrialNumber};

/// A range that a search widened by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Widening {
    pub parameter: String,
    pub from: Bounds,
    pub to: Bounds,
    /// The trial with the least loss by then, which sat on the edge.
    pub best: TrialNumber,
    /// Trainings that it was the best of.
    pub trainings: u64,
}

impl Widening {
    /// The end that was moved.
    pub fn end(&self) -> RangeEnd {
        match self.to.high > self.from.high {
            true => RangeEnd::High,
            false => RangeEnd::Low,
        }
    }

    /// Value at which the widened end was before.
    pub fn edge(&self) -> f64 {
        match self.end() {
            RangeEnd::High => self.from.high,
            RangeEnd::Low => self.from.low,
        }
    }
}

/// `learning_rate: range widened to 1e-4..8e-3: the best of 9 trainings sits on its upper edge, 2e-3`
impl fmt::Display for Widening {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.end() {
            RangeEnd::High => "upper",
            RangeEnd::Low => "lower",
        };
        write!(
            formatter,
            "{}: range widened to {}: the best of {} trainings sits on its {end} edge, {}",
            self.parameter,
            self.to,
            self.trainings,
            ParamValue::Float(self.edge())
        )
    }
}

impl Distribution {
    /// The ends of a continuous range; `None` of anything else.
    pub fn bounds(&self) -> Option<(Bounds, Scale)> {
        match self {
            Self::Float {
                low,
                high,
                scale,
                step: None,
            } => Some((Bounds { low: *low, high: *high }, *scale)),
            _ => None,
        }
    }
}

impl SearchSpace {
    /// Widens the ranges that were widened, as far as they may be: one that is fixed by now stays as the file has it.
    pub fn widen(&mut self, widenings: &[Widening]) {
        for widening in widenings {
            let parameter = self.parameters.iter_mut().find(|one| one.name == widening.parameter);
            let Some((parameter, most)) = parameter.and_then(|one| one.widest.map(|most| (one, most))) else {
                continue;
            };
            if let Distribution::Float {
                low, high, step: None, ..
            } = &mut parameter.distribution
            {
                *low = low.min(widening.to.low.max(most.low));
                *high = high.max(widening.to.high.min(most.high));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    fn space(low: f64, high: f64, widest: Option<Bounds>) -> SearchSpace {
        SearchSpace {
            parameters: vec![Parameter {
                name: "learning_rate".to_owned(),
                distribution: Distribution::Float {
                    low,
                    high,
                    scale: Scale::Log,
                    step: None,
                },
                condition: None,
                affects: None,
                widest,
            }],
        }
    }

    fn widening() -> Widening {
        Widening {
            parameter: "learning_rate".to_owned(),
            from: Bounds { low: 1e-4, high: 2e-3 },
            to: Bounds { low: 1e-4, high: 8e-3 },
            best: TrialNumber(7),
            trainings: 9,
        }
    }

    #[test]
    fn a_widening_is_told_in_one_line() {
        assert_eq!(
            widening().to_string(),
            "learning_rate: range widened to 1e-4..0.008: the best of 9 trainings sits on its upper edge, 0.002"
        );
    }

    #[test]
    fn a_fixed_range_is_not_widened_by_what_was_widened_before() {
        let mut fixed = space(1e-4, 2e-3, None);
        fixed.widen(&[widening()]);
        assert_eq!(fixed, space(1e-4, 2e-3, None));
        let widest = Bounds { low: 1e-5, high: 0.1 };
        let mut open = space(1e-4, 2e-3, Some(widest));
        open.widen(&[widening()]);
        assert_eq!(open, space(1e-4, 8e-3, Some(widest)));
    }
}
