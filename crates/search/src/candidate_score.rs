//! What a surrogate expects of a setting.

use super::Predicted;

/// Expectations of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateScore {
    /// Expected hypervolume improvement, in the product of the objectives' units.
    pub expected_improvement: f64,
    /// Natural logarithm of the acquisition: improvement times the probability of keeping limits and not failing.
    pub log_acquisition: f64,
    /// The objectives, each with its interval, in the problem's order; empty where a trial is to find out whether the surrogate is
    /// right about it.
    pub predicted: Vec<Predicted>,
}
