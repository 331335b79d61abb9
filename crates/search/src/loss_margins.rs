//! Differences of losses that decide nothing: what people give up for speed, and what chance explains.

/// The loss that the default gives up for speed, as a share of the best trial's.
pub const NEAR_BEST_LOSS: f64 = 0.01;
/// Difference of losses that chance alone explains, as a share: 99.5% of differences of two seeds whose losses have a
/// standard deviation of 0.5%.
pub const LOSS_BY_CHANCE: f64 = 0.02;
