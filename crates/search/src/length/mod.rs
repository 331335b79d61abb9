//! Losses over setting and length: what short trainings and a few longer ones say of the full length.

mod covariance;
mod full_length;
mod model;

pub use full_length::{FullLength, RateRange, Trained};
