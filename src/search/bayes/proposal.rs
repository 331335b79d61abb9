//! The Bayesian sampler: from a history to the next setting.

use std::fmt;
use std::sync::Arc;

use super::candidates::Candidates;
use super::landscape::Landscape;
use super::marginal::Marginal;
use super::maximise::{Search, key};
use super::model::Model;
use super::observations::{Observations, Seen};
use super::output::Output;
use crate::objective::Objective;
use crate::search::encode::{Encoding, Point};
use crate::search::pareto;
use crate::search::seeded::{Stream, Tried, generator};
use crate::search::sobol::initial_design;
use crate::search::{Prior, Problem, Sampler};
use crate::study::{Metrics, Params, Trial, TrialNumber, TrialState};

/// Sobol trials before the first model.
const INITIAL: usize = 8;

/// Proposes the setting with the highest expected hypervolume improvement.
#[derive(Clone)]
pub struct Bayes {
    seed: u64,
    prior: Option<Arc<dyn Prior>>,
    /// Metric that says what a trial costs.
    cost: Option<String>,
}

impl fmt::Debug for Bayes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Bayes")
            .field("seed", &self.seed)
            .field("prior", &self.prior.is_some())
            .field("cost", &self.cost)
            .finish()
    }
}

/// A setting and why it is proposed.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub params: Params,
    /// Natural logarithm of the acquisition: expected hypervolume improvement times the probability of success (per unit of
    /// cost, where proposals are weighed by it). `None` for the initial design.
    pub log_acquisition: Option<f64>,
    /// Expected hypervolume improvement alone, in the product of the objectives' units.
    pub expected_improvement: Option<f64>,
    /// Predicted objectives.
    pub predicted: Vec<Predicted>,
}

/// A predicted metric in its own unit and direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    pub metric: String,
    pub median: f64,
    /// The interval that holds the noise-free value with probability 0.9.
    pub low: f64,
    pub high: f64,
}

impl Bayes {
    /// A sampler whose initial design and search follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            prior: None,
            cost: None,
        }
    }

    /// Learns only what measurements add to a prior's predictions, and never proposes what it calls impossible.
    #[must_use]
    pub fn with_prior(mut self, prior: Arc<dyn Prior>) -> Self {
        self.prior = Some(prior);
        self
    }

    /// Weighs proposals by the predicted value of a metric such as the trial's wall time.
    #[must_use]
    pub fn per_cost(mut self, metric: impl Into<String>) -> Self {
        self.cost = Some(metric.into());
        self
    }

    /// The next setting with its reasons, or `None` when everything is tried.
    pub fn propose(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        if history.len() < INITIAL {
            return self.initial(problem, history);
        }
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(problem, &encoding, history, self.cost.as_deref());
        let model = self.model(problem, &encoding, &observations);
        let Some(mut landscape) = model.landscape() else {
            return self.initial(problem, history);
        };
        let candidates = Candidates::new(&problem.space, &encoding);
        let shifted: Vec<bool> = landscape.outputs.iter().map(Output::is_shifted).collect();
        let shifts = |point: &Point| model.shifts(&shifted, &candidates, point);
        if self.prior.is_some() {
            landscape.shifts = Some(&shifts);
        }
        let tried_points = history
            .iter()
            .filter_map(|trial| encoding.point(&problem.space, &trial.params));
        let search = Search {
            candidates: &candidates,
            landscape: &landscape,
            tried: tried_points.map(|point| key(&point)).collect(),
            good: good_points(&observations.seen),
            conditioned: history.len(),
        };
        let mut random = generator(self.seed, Stream::Bayes, history.len());
        let tried = Tried::new(history);
        let found = search.maximise(&mut random).into_iter().find_map(|found| {
            let params = candidates.params(&found.candidate);
            (!tried.contains(&params)).then_some((found, params))
        });
        let Some((found, params)) = found else {
            return self.initial(problem, history);
        };
        let point = candidates.settled(&found.candidate);
        Some(described(problem, &landscape, &point, (params, found.log_value)))
    }

    /// The next `count` settings, each proposed as if those before it were under way: for parallel workers, or to say what
    /// a study would try next.
    pub fn propose_many(&self, problem: &Problem, history: &[Trial], count: usize) -> Vec<Proposal> {
        let mut trials = history.to_vec();
        let next_number = trials.iter().map(|trial| trial.number.0 + 1).max().unwrap_or(0);
        let mut proposals = Vec::with_capacity(count);
        for number in next_number..next_number + count as u64 {
            let Some(proposal) = self.propose(problem, &trials) else {
                break;
            };
            trials.push(Trial {
                number: TrialNumber(number),
                params: proposal.params.clone(),
                state: TrialState::Running,
            });
            proposals.push(proposal);
        }
        proposals
    }

    /// The improvement of the hypervolume that a setting is still expected to bring once some of its objectives are known
    /// (throughput and memory after the profile phase), in the product of the objectives' units. `None` while there is no
    /// model, or where the setting is not in the space.
    pub fn expected_improvement(
        &self,
        problem: &Problem,
        history: &[Trial],
        params: &Params,
        known: &Metrics,
    ) -> Option<f64> {
        let encoding = Encoding::new(&problem.space);
        let point = encoding.point(&problem.space, params)?;
        let observations = Observations::new(problem, &encoding, history, self.cost.as_deref());
        let model = self.model(problem, &encoding, &observations);
        let landscape = model.landscape()?;
        let candidates = Candidates::new(&problem.space, &encoding);
        let shifted: Vec<bool> = landscape.outputs.iter().map(Output::is_shifted).collect();
        let shifts = model.shifts(&shifted, &candidates, &point)?;
        let objectives = problem.objectives.iter().enumerate();
        let marginal = |(index, objective): (usize, &Objective)| match known.value(&objective.metric) {
            Some(value) => Marginal::certain(objective.minimised(value)),
            None => landscape.outputs[index].marginal_at(&point, shifts[index]),
        };
        let marginals: Vec<Marginal> = objectives.map(marginal).collect();
        Some(landscape.ehvi.as_ref()?.log_value(&marginals).exp())
    }

    fn model<'a>(
        &'a self,
        problem: &'a Problem,
        encoding: &'a Encoding,
        observations: &'a Observations<'a>,
    ) -> Model<'a> {
        Model {
            problem,
            encoding,
            observations,
            prior: self.prior.as_deref().map(|prior| prior as &dyn Prior),
            cost: self.cost.as_deref(),
        }
    }

    /// A setting of the initial design.
    fn initial(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        Some(Proposal {
            params: initial_design(&problem.space, self.seed, history)?,
            log_acquisition: None,
            expected_improvement: None,
            predicted: Vec::new(),
        })
    }
}

impl Sampler for Bayes {
    fn name(&self) -> &'static str {
        "bayes"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        self.propose(problem, history).map(|proposal| proposal.params)
    }
}

/// Points to mutate: the front, then the next layers.
fn good_points(seen: &[Seen]) -> Vec<Point> {
    let feasible: Vec<&Seen> = seen.iter().filter(|seen| seen.feasible).collect();
    let values: Vec<&[f64]> = feasible.iter().map(|seen| seen.values.as_slice()).collect();
    let ranks = pareto::ranks(&values);
    let mut order: Vec<usize> = (0..feasible.len()).filter(|index| ranks[*index] <= 1).collect();
    order.sort_by_key(|index| ranks[*index]);
    order.into_iter().map(|index| feasible[index].point.clone()).collect()
}

fn described(
    problem: &Problem,
    landscape: &Landscape<'_>,
    point: &Point,
    (params, log_acquisition): (Params, f64),
) -> Proposal {
    let marginals = landscape.marginals(point).unwrap_or_default();
    let predicted = problem.objectives.iter().zip(&marginals).map(|(objective, marginal)| {
        let at = |z: f64| objective.minimised(marginal.shape.outer(marginal.mean + z * marginal.deviation));
        let (a, b) = (at(-1.645), at(1.645));
        Predicted {
            metric: objective.metric.clone(),
            median: at(0.0),
            low: a.min(b),
            high: a.max(b),
        }
    });
    let gain = landscape
        .ehvi
        .as_ref()
        .filter(|_| marginals.len() >= landscape.objectives);
    Proposal {
        params,
        log_acquisition: Some(log_acquisition),
        expected_improvement: gain.map(|ehvi| ehvi.log_value(&marginals[..landscape.objectives]).exp()),
        predicted: predicted.collect(),
    }
}
