//! The learning rates that are searched, by the size of the model.

use std::fmt;

/// A range of learning rates.
///
/// Design note: the best rate of an adapter falls with the model's width ("LoRA Without Regret", Thinking Machines Lab
/// 2025). SmolLM2-135M on GSM8K is best at 4e-3 (rank 32, alpha 32), models of 8 billion at a few times 1e-4. Each range
/// reaches beyond the best of its models on both sides, and ranges overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateRange {
    pub low: f64,
    pub high: f64,
}

impl RateRange {
    /// The range for a model of so many parameters; a wide one in the middle where they are not known.
    pub(super) fn of(parameters: Option<u64>) -> Self {
        let (low, high) = match parameters {
            None => (5e-5, 2e-3),
            Some(..=300_000_000) => (1e-4, 8e-3),
            Some(..=3_000_000_000) => (5e-5, 4e-3),
            Some(_) => (2e-5, 1e-3),
        };
        Self { low, high }
    }
}

/// `1e-4 to 8e-3`.
impl fmt::Display for RateRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:e} to {:e}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_models_get_lower_rates() {
        let sizes = [Some(135_000_000), Some(1_500_000_000), Some(8_000_000_000), None];
        let shown = sizes.map(|size| RateRange::of(size).to_string());
        assert_eq!(shown, ["1e-4 to 8e-3", "5e-5 to 4e-3", "2e-5 to 1e-3", "5e-5 to 2e-3"]);
    }
}
