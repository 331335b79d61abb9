//! [`Bounds`] of a range that a search widens by itself: what a step is, and how far all steps together lead.
//!
//! A range of the scale `log` is widened by a factor of 4, one that spans less than a factor of 16 by 2. Any other is widened by a
//! quarter of its width. All steps together lead no further than a factor of 64, or three quarters of the width, beyond what the
//! file says, and never across zero.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Scale;
use crate::recipe::settings::FloatRange;
use crate::study::ParamValue;

/// Factors of a step of a wide and of a narrow range of the scale `log`, and what a range spans from which it is wide.
const WIDE_FACTOR: f64 = 4.0;
const NARROW_FACTOR: f64 = 2.0;
const WIDE_SPAN: f64 = 16.0;
/// Share of the width that a step of another range adds.
const STEP: f64 = 0.25;
/// Most that all steps together may add at either end.
const MOST: Stretch = Stretch {
    factor: 64.0,
    share: 0.75,
};

/// Stretch by which an end moves: by a factor on the scale `log`, and by a share of the width on another.
#[derive(Clone, Copy)]
struct Stretch {
    factor: f64,
    share: f64,
}

/// The ends of a range, both included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    pub low: f64,
    pub high: f64,
}

/// End of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    Low,
    High,
}

impl Bounds {
    /// Whether another range lies within this one.
    pub fn contains(&self, other: Self) -> bool {
        self.low <= other.low && other.high <= self.high
    }

    /// The range a step wider at one end.
    #[must_use]
    pub fn stepped(self, scale: Scale, end: RangeEnd) -> Self {
        let factor = match self.high / self.low >= WIDE_SPAN {
            true => WIDE_FACTOR,
            false => NARROW_FACTOR,
        };
        self.beyond(scale, Stretch { factor, share: STEP }, end)
    }

    /// The widest range that steps may lead to from this one, within `allowed` where that is given. `None` where they lead nowhere.
    pub fn widest(self, scale: Scale, allowed: Option<FloatRange>) -> Option<Self> {
        let widest = Self {
            low: self.beyond(scale, MOST, RangeEnd::Low).low,
            high: self.beyond(scale, MOST, RangeEnd::High).high,
        };
        let widest = match allowed {
            Some(allowed) => Self {
                low: widest.low.max(allowed.low),
                high: widest.high.min(allowed.high),
            },
            None => widest,
        };
        (widest.contains(self) && widest != self).then_some(widest)
    }

    fn beyond(self, scale: Scale, Stretch { factor, share }: Stretch, end: RangeEnd) -> Self {
        let width = self.high - self.low;
        let moved = match (scale, end) {
            (Scale::Log, RangeEnd::High) => self.high * factor,
            (Scale::Log, RangeEnd::Low) => self.low / factor,
            (Scale::Linear, RangeEnd::High) if self.high <= 0.0 => rounded(self.high + share * width).min(0.0),
            (Scale::Linear, RangeEnd::High) => rounded(self.high + share * width),
            (Scale::Linear, RangeEnd::Low) if self.low >= 0.0 => rounded(self.low - share * width).max(0.0),
            (Scale::Linear, RangeEnd::Low) => rounded(self.low - share * width),
        };
        match end {
            _ if !moved.is_finite() => self,
            RangeEnd::High => Self {
                high: moved.max(self.high),
                ..self
            },
            RangeEnd::Low => Self {
                low: moved.min(self.low),
                ..self
            },
        }
    }
}

/// Nine digits: 0.05 + 0.0125 is 0.0625.
fn rounded(value: f64) -> f64 {
    format!("{value:.8e}").parse().unwrap_or(value)
}

/// `1e-4..8e-3`
impl fmt::Display for Bounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}..{}",
            ParamValue::Float(self.low),
            ParamValue::Float(self.high)
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_depend_on_what_a_range_spans() {
        let step = |low, high, scale, end| Bounds { low, high }.stepped(scale, end);
        assert_eq!(
            step(1e-4, 2e-3, Scale::Log, RangeEnd::High),
            Bounds { low: 1e-4, high: 8e-3 }
        );
        assert_eq!(
            step(4.0, 32.0, Scale::Log, RangeEnd::Low),
            Bounds { low: 2.0, high: 32.0 }
        );
        assert_eq!(
            step(0.05, 0.1, Scale::Linear, RangeEnd::High),
            Bounds {
                low: 0.05,
                high: 0.1125
            }
        );
        // What is not negative stays so.
        assert_eq!(
            step(0.01, 0.1, Scale::Linear, RangeEnd::Low),
            Bounds { low: 0.0, high: 0.1 }
        );
    }

    #[test]
    fn a_range_outside_of_what_is_allowed_stays_as_it_is() {
        let share = Some(FloatRange::between(0.0, 0.5));
        let widest = |low, high, allowed| Bounds { low, high }.widest(Scale::Linear, allowed);
        assert_eq!(widest(0.0, 0.4, share), Some(Bounds { low: 0.0, high: 0.5 }));
        assert_eq!(widest(10.0, 100.0, share), None);
        assert_eq!(widest(0.0, 0.5, share), None);
    }

    proptest! {
        #[test]
        fn steps_are_never_narrower_and_keep_their_sign(
            low in -1.0..1.0f64, width in 1e-6..10.0f64, end in prop_oneof![Just(RangeEnd::Low), Just(RangeEnd::High)]
        ) {
            let before = Bounds { low, high: low + width };
            let after = before.stepped(Scale::Linear, end);
            prop_assert!(after.contains(before));
            prop_assert!(before.low < 0.0 || after.low >= 0.0);
            prop_assert!(before.high > 0.0 || after.high <= 0.0);
        }

        #[test]
        fn the_widest_range_holds_the_range(low in 1e-8..1.0f64, factor in 1.01..1e4f64) {
            let before = Bounds { low, high: low * factor };
            let widest = before.widest(Scale::Log, None).unwrap();
            prop_assert!(widest.contains(before.stepped(Scale::Log, RangeEnd::High)));
            prop_assert!(widest.contains(before.stepped(Scale::Log, RangeEnd::Low)));
        }
    }
}
