//! Losses over setting and length: what short trainings and a few longer ones say of the full length, and how long that should be.

mod covariance;
mod full_length;
mod model;
mod paying;

pub use full_length::{FullLength, RateRange, Trained};
pub(crate) use full_length::{LEARNING_RATE, ROUNDS};
pub use paying::PayingLength;
