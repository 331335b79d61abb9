//! Seconds of a step by what limits them.

use super::op::OpKind;

/// Parts of a step's time whose ceilings are learned apart from each other.
pub(super) const TIME_PARTS: usize = 4;

/// Seconds of a step by what limits them.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Seconds {
    /// Products with base weights.
    pub products: f64,
    /// Products of adapters and gradients.
    pub adapters: f64,
    pub attention: f64,
    /// Passes over memory, the update included.
    pub passes: f64,
}

impl Seconds {
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// The parts in the order of their fields.
    pub fn parts(&self) -> [f64; TIME_PARTS] {
        [self.products, self.adapters, self.attention, self.passes]
    }

    /// Seconds of a step of which `share` are spent as in `other`.
    pub(super) fn mixed(&self, other: &Self, share: f64) -> Self {
        let mix = |own: f64, other: f64| (1.0 - share) * own + share * other;
        Self {
            products: mix(self.products, other.products),
            adapters: mix(self.adapters, other.adapters),
            attention: mix(self.attention, other.attention),
            passes: mix(self.passes, other.passes),
        }
    }

    /// Adds the seconds of an op.
    pub(super) fn add(&mut self, kind: OpKind, seconds: f64) {
        let part = match kind {
            OpKind::Products => &mut self.products,
            OpKind::Adapters => &mut self.adapters,
            OpKind::Attention => &mut self.attention,
            OpKind::Passes => &mut self.passes,
        };
        *part += seconds;
    }
}
