//! [`Predicted`]: a metric as a surrogate expects it.

use serde::Serialize;

/// A predicted metric in its own unit and direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    pub metric: String,
    pub median: f64,
    /// The interval that holds the noise-free value with probability 0.9.
    pub low: f64,
    pub high: f64,
}
