//! Scores of settings that somebody else chose, by the surrogates.

use super::landscape::Landscape;
use super::proposal::described;
use crate::encode::{Encoding, Point};
use crate::{CandidateScore, Problem};
use peft_tune_core::study::Params;

/// The score of one setting.
pub(super) fn of_params(
    problem: &Problem,
    landscape: &Landscape<'_>,
    encoding: &Encoding,
    params: &Params,
) -> CandidateScore {
    match encoding.point(&problem.space, params) {
        Some(point) => of_point(problem, landscape, &point, params),
        None => CandidateScore {
            expected_improvement: 0.0,
            log_acquisition: f64::NEG_INFINITY,
            predicted: Vec::new(),
        },
    }
}

fn of_point(problem: &Problem, landscape: &Landscape<'_>, point: &Point, params: &Params) -> CandidateScore {
    let log_value = landscape.log_values(std::slice::from_ref(point))[0];
    let proposal = described(problem, landscape, point, params.clone(), log_value);
    CandidateScore {
        expected_improvement: proposal.expected_improvement.unwrap_or(0.0),
        log_acquisition: log_value,
        predicted: proposal.predicted,
    }
}
