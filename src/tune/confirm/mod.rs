//! Confirmation of a recommendation: the recommended trial, and those that noise could put in its place, are run again
//! until the values that decide are known well enough.
//!
//! What holds for a short training need not hold for a long one, so the finalists are trained longer. Two things are noisy.
//! The throughput is: it is profiled again, longer. The loss is, by the seed: finalists are trained again with other seeds,
//! all of them once before any of them twice, and those that fall behind take no further part.

mod expected;
mod finalists;
mod found_length;
mod lack;
mod lengths;
mod long_training;
mod next_repeat;
mod repeat;
mod repeated;
mod repeated_costs;
mod runs;
mod seeds;
mod trainings;

pub use repeat::Repeat;
