//! The Bayesian sampler: from a history to the next setting.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;

use super::candidates::Candidates;
use super::ehvi::Ehvi;
use super::landscape::{Landscape, Limit};
use super::maximise::{Search, key};
use super::observations::{Observations, Seen};
use super::output::{Output, prior_shift};
use crate::objective::Bound;
use crate::search::encode::{Encoding, Point};
use crate::search::gp::{self, Data, Gp};
use crate::search::pareto;
use crate::search::seeded::{Stream, Tried, generator};
use crate::search::sobol::initial_design;
use crate::search::{Prior, Problem, Prospect, Sampler, reference_point};
use crate::study::{Params, Trial, TrialState};

/// Sobol trials before the first model.
pub(super) const INITIAL: usize = 8;

/// Points of the initial design that are passed over, certain to fail, before one of them is taken after all.
const MOST_PASSED: usize = 256;

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

    pub(super) fn has_prior(&self) -> bool {
        self.prior.is_some()
    }

    /// Weighs proposals by the predicted value of a metric such as the trial's wall time.
    #[must_use]
    pub fn per_cost(mut self, metric: impl Into<String>) -> Self {
        self.cost = Some(metric.into());
        self
    }

    /// The next setting with its reasons, or `None` when everything is tried.
    pub fn propose(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        let encoding = Encoding::new(&problem.space);
        let observations = Observations::new(problem, &encoding, history, self.cost.as_deref());
        let modelled = if history.len() < INITIAL {
            None
        } else {
            self.model(problem, &encoding, &observations)
        };
        let Some(mut landscape) = modelled else {
            return self.initial(problem, history);
        };
        let shifts = |point: &Point| self.shifts(problem, &encoding, &observations, point);
        if self.prior.is_some() {
            landscape.shifts = Some(&shifts);
        }
        self.take_pending(problem, &observations, &mut landscape);
        let tried_points = history
            .iter()
            .filter_map(|trial| encoding.point(&problem.space, &trial.params));
        let search = Search {
            candidates: Candidates::new(&problem.space, &encoding),
            landscape: &landscape,
            tried: tried_points.map(|point| key(&point)).collect::<HashSet<_>>(),
            good: good_points(&observations.seen),
            conditioned: history.len(),
        };
        let mut random = generator(self.seed, Stream::Bayes, history.len());
        let tried = Tried::new(history);
        let found = search.maximise(&mut random).into_iter().find_map(|found| {
            let params = search.candidates.params(&found.candidate);
            (!tried.contains(&params)).then_some((found, params))
        });
        let Some((found, params)) = found else {
            return self.initial(problem, history);
        };
        let point = search.candidates.settled(&found.candidate);
        Some(described(problem, &landscape, &point, (params, found.log_value)))
    }

    fn initial(&self, problem: &Problem, history: &[Trial]) -> Option<Proposal> {
        Some(Proposal {
            params: self.initial_params(problem, history)?,
            log_acquisition: None,
            expected_improvement: None,
            predicted: Vec::new(),
        })
    }

    /// The next point of the initial design that is not certain to fail, or the first one where all looked at are.
    fn initial_params(&self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        let first = initial_design(&problem.space, self.seed, history)?;
        let Some(prior) = self.prior.as_deref() else {
            return Some(first);
        };
        let (mut passed, mut next) = (history.to_vec(), Some(first.clone()));
        for _ in 0..MOST_PASSED {
            let Some(params) = next else { break };
            if prior.impossible(&params).is_none() {
                return Some(params);
            }
            // As if it had been tried: the design goes on behind it.
            passed.push(Trial {
                number: crate::study::TrialNumber(passed.len() as u64),
                params,
                state: TrialState::Waiting,
            });
            next = initial_design(&problem.space, self.seed, &passed);
        }
        Some(first)
    }

    /// Fits every surrogate; `None` while an objective has too few values.
    pub(super) fn model<'a>(
        &self,
        problem: &Problem,
        encoding: &Encoding,
        observations: &Observations<'_>,
    ) -> Option<Landscape<'a>> {
        let prior = self.prior.as_deref();
        let jobs: Vec<usize> = (0..observations.modelled.len()).collect();
        let outputs: Vec<Option<Output>> = jobs
            .par_iter()
            .map(|index| {
                Output::fit(
                    encoding,
                    &observations.modelled[*index],
                    &observations.data[*index],
                    prior,
                )
            })
            .collect();
        let outputs: Vec<Output> = outputs.into_iter().collect::<Option<_>>()?;
        let values: Vec<Vec<f64>> = feasible(&observations.seen).map(|seen| seen.values.clone()).collect();
        let reference = reference_point(problem, &values);
        Some(Landscape {
            objectives: problem.objectives.len(),
            limits: limits(problem, observations),
            ehvi: (!values.is_empty()).then(|| Ehvi::new(&values, &reference)),
            failure: failure_process(encoding, observations),
            cost: self.cost.as_ref().and_then(|cost| {
                let modelled = observations.modelled.iter();
                modelled.clone().position(|modelled| modelled.metric == *cost)
            }),
            shifts: None,
            outputs,
        })
    }

    /// The prior's shift of every output, or `None` where the setting is certain to fail.
    pub(super) fn shifts(
        &self,
        problem: &Problem,
        encoding: &Encoding,
        observations: &Observations<'_>,
        point: &Point,
    ) -> Option<Vec<f64>> {
        let prior = self.prior.as_deref()?;
        let params = Candidates::new(&problem.space, encoding).params(point);
        if prior.impossible(&params).is_some() {
            return None;
        }
        let modelled = observations.modelled.iter();
        Some(
            modelled
                .map(|modelled| prior_shift(prior, modelled, &params).unwrap_or(0.0))
                .collect(),
        )
    }

    /// Settings under way are taken to end as predicted, so that further proposals look elsewhere.
    fn take_pending(&self, problem: &Problem, observations: &Observations<'_>, landscape: &mut Landscape<'_>) {
        if observations.pending.is_empty() {
            return;
        }
        let mut values: Vec<Vec<f64>> = feasible(&observations.seen).map(|seen| seen.values.clone()).collect();
        let reference = reference_point(problem, &values);
        for (point, _) in &observations.pending {
            let Some(marginals) = landscape.marginals(point) else {
                continue;
            };
            values.push(
                marginals[..landscape.objectives]
                    .iter()
                    .map(|one| one.median())
                    .collect(),
            );
            for output in &mut landscape.outputs {
                output.take_expected(point);
            }
        }
        landscape.ehvi = (!values.is_empty()).then(|| Ehvi::new(&values, &reference));
    }
}

impl Sampler for Bayes {
    fn name(&self) -> &'static str {
        "bayes"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        self.propose(problem, history).map(|proposal| proposal.params)
    }

    fn prospects(&self, problem: &Problem, history: &[Trial], settings: &[Params]) -> Option<Vec<Prospect>> {
        self.outlook(problem, history, settings)
    }
}

fn feasible(seen: &[Seen]) -> impl Iterator<Item = &Seen> {
    seen.iter().filter(|seen| seen.feasible)
}

/// Points to mutate: the front, then the next layers.
fn good_points(seen: &[Seen]) -> Vec<Point> {
    let feasible: Vec<&Seen> = feasible(seen).collect();
    let values: Vec<&[f64]> = feasible.iter().map(|seen| seen.values.as_slice()).collect();
    let ranks = pareto::ranks(&values);
    let mut order: Vec<usize> = (0..feasible.len()).filter(|index| ranks[*index] <= 1).collect();
    order.sort_by_key(|index| ranks[*index]);
    order.into_iter().map(|index| feasible[index].point.clone()).collect()
}

/// The study's constraints, and the memory above which trials fail.
fn limits(problem: &Problem, observations: &Observations<'_>) -> Vec<(usize, Limit)> {
    let mut limits: Vec<(usize, Limit)> = Vec::new();
    for constraint in &problem.constraints {
        let modelled = &observations.modelled;
        let Some(index) = modelled.iter().position(|one| one.metric == constraint.metric) else {
            continue;
        };
        let negative = modelled[index].sign < 0.0;
        limits.push((
            index,
            match constraint.bound {
                Bound::AtMost(limit) if negative => Limit::AtLeast(-limit),
                Bound::AtMost(limit) => Limit::AtMost(limit),
                Bound::AtLeast(limit) if negative => Limit::AtMost(-limit),
                Bound::AtLeast(limit) => Limit::AtLeast(limit),
            },
        ));
    }
    if let Some((index, limit)) = observations.memory_limit {
        let ran_out = !observations.data[index].bounds.is_empty();
        if ran_out && !limits.iter().any(|(other, _)| *other == index) {
            limits.push((index, Limit::AtMost(limit)));
        }
    }
    limits
}

/// A process on success (1) and failure (-1), where there was a failure that no metric explains.
fn failure_process(encoding: &Encoding, observations: &Observations<'_>) -> Option<Gp> {
    if !observations.outcomes.iter().any(|(_, failed)| *failed) {
        return None;
    }
    let points: Vec<Point> = observations.outcomes.iter().map(|(point, _)| point.clone()).collect();
    let targets: Vec<f64> = observations
        .outcomes
        .iter()
        .map(|(_, failed)| if *failed { -1.0 } else { 1.0 })
        .collect();
    let used: Vec<usize> = (0..encoding.axes().len()).collect();
    let data = Data {
        axes: encoding.axes(),
        used: &used,
        points: &points,
        targets: &targets,
    };
    let fit = gp::fit(&data, &[])?;
    Gp::new(&data, fit.hyper, None)
}

pub(super) fn described(
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
