//! What the surrogates expect of settings that somebody else chose.

use super::candidates::Candidates;
use super::landscape::Landscape;
use super::observations::Observations;
use super::output::Output;
use super::proposal::{Bayes, described};
use crate::search::encode::{Encoding, Point};
use crate::search::{Problem, Prospect};
use crate::study::{Params, Trial};

impl Bayes {
    /// What is expected of each of `settings`, given the history; `None` before there is a model. A setting outside the
    /// space, or one that is certain to fail, is expected to add nothing.
    pub fn outlook(&self, problem: &Problem, history: &[Trial], settings: &[Params]) -> Option<Vec<Prospect>> {
        if history.len() < self.initial {
            return None;
        }
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(problem, &encoding, history, self.cost());
        let model = self.model(problem, &encoding, &observations);
        let mut landscape = model.landscape()?;
        let candidates = Candidates::new(&problem.space, &encoding);
        let shifted: Vec<bool> = landscape.outputs.iter().map(Output::is_shifted).collect();
        let shifts = |point: &Point| model.shifts(&shifted, &candidates, point);
        if self.has_prior() {
            landscape.shifts = Some(&shifts);
        }
        let prospect = |params: &Params| match encoding.point(&problem.space, params) {
            Some(point) => of_point(problem, &landscape, &point, params),
            None => Prospect {
                expected_improvement: 0.0,
                log_acquisition: f64::NEG_INFINITY,
                predicted: Vec::new(),
            },
        };
        Some(settings.iter().map(prospect).collect())
    }
}

fn of_point(problem: &Problem, landscape: &Landscape<'_>, point: &Point, params: &Params) -> Prospect {
    let log_value = landscape.log_values(std::slice::from_ref(point))[0];
    let proposal = described(problem, landscape, point, (params.clone(), log_value));
    Prospect {
        expected_improvement: proposal.expected_improvement.unwrap_or(0.0),
        log_acquisition: log_value,
        predicted: proposal.predicted,
    }
}
