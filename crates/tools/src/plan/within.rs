//! How far predictions of other stacks are off: nine of ten published rows lie within (`docs/benchmarks/stacks.csv`, which the report of
//! `watch` is tested against).

/// Share by which predicted speeds are off, faster or slower.
pub const SPEED_WITHIN: f64 = 0.85;
/// Share of the peak that a prediction is off, more or less, where no device says more.
pub const MEMORY_WITHIN: f64 = 0.23;
