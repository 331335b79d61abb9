//! The acquisition of a history's observations: fitted surrogates, limits, and the process on failures.

use rayon::prelude::*;

use super::aim::Aim;
use super::candidates::Candidates;
use super::ehvi::Ehvi;
use super::landscape::Landscape;
use super::marginal::Marginal;
use super::observations::{EvaluatedPoint, MetricData, Modelled, Observations};
use super::output::{Output, representative};
use super::surrogates::{LIKELY, Limit, Surrogates};
use crate::encode::{Encoding, Point};
use crate::gp;
use crate::gp::{Effort, FitInput, Gp};
use crate::{Prior, Problem};
use peft_tune_core::objective::{Bound, Constraint};

/// Settings out of memory that are enough to tell which metric explains them.
const LEAST_TO_EXPLAIN: usize = 2;
/// Share of the measured values that such a metric's predictions must exceed on average.
const EXPLAINED: f64 = 0.85;

/// Most outcomes that the process on failures is made from.
const MOST_OUTCOMES: usize = 120;

/// Parts that the acquisition is made from.
pub(super) struct Model<'a> {
    pub(super) problem: &'a Problem,
    pub(super) encoding: &'a Encoding,
    pub(super) observations: &'a Observations<'a>,
    pub(super) prior: Option<&'a dyn Prior>,
}

impl Model<'_> {
    /// Fits every surrogate; `None` while an objective has too few values, so that no setting can be weighed against
    /// another.
    pub(super) fn landscape<'b>(&self) -> Option<Landscape<'b>> {
        let observations = self.observations;
        let fitted = |index: usize| {
            let (modelled, data) = (&observations.modelled[index], &observations.data[index]);
            Output::fit(self.encoding, modelled, data, self.prior)
        };
        let outputs: Vec<Option<Output>> = (0..observations.modelled.len()).into_par_iter().map(fitted).collect();
        let mut outputs: Vec<Output> = outputs.into_iter().collect::<Option<_>>()?;
        let memory = observations.memory.or_else(|| explaining(&outputs, observations));
        let memory = memory.and_then(|index| Some((index, observations.memory_limit(self.problem, index)?)));
        if let Some((index, limit)) = memory {
            let measured = &observations.data[index].points;
            let unmeasured = observations
                .ran_out
                .iter()
                .filter(|(point, _)| !measured.contains(point));
            let bounds: Vec<_> = unmeasured
                .map(|(point, params)| (point.clone(), *params, limit))
                .collect();
            outputs[index].take_bounds(&bounds, &observations.modelled[index], self.prior);
        }
        let mut landscape = Landscape {
            surrogates: Surrogates {
                outputs,
                objectives: self.problem.objectives.len(),
                limits: self.limits(memory),
                shifts: None,
            },
            counted: observations.evaluated.clone(),
            ehvi: None,
            failure: self.failure_process(memory.is_none()),
            cost: observations.modelled.iter().position(|one| one.is_cost),
            aim: Aim::Front,
            trainings: None,
        };
        self.take_pending(&mut landscape);
        Some(landscape)
    }

    /// The prior's shift of every output at a point, or `None` where the setting is certain to fail.
    pub(super) fn shifts(&self, outputs: &[bool], candidates: &Candidates<'_>, point: &Point) -> Option<Vec<f64>> {
        let Some(prior) = self.prior else {
            return Some(vec![0.0; outputs.len()]);
        };
        let params = candidates.params(point);
        if prior.impossible(&params).is_some() {
            return None;
        }
        let modelled = self.observations.modelled.iter().zip(outputs);
        let shift = |(modelled, shifted): (&Modelled, &bool)| {
            if *shifted {
                modelled.prior_shift(prior, &params).unwrap_or(0.0)
            } else {
                0.0
            }
        };
        Some(modelled.map(shift).collect())
    }

    /// Sets the improvement over the front; settings under way are taken to end as predicted, so that further proposals
    /// look elsewhere.
    fn take_pending(&self, landscape: &mut Landscape<'_>) {
        for (point, params) in &self.observations.pending {
            let expected = |(output, modelled): (&Output, &Modelled)| {
                let prior = self.prior.filter(|_| output.is_shifted());
                let shift = prior.and_then(|prior| modelled.prior_shift(prior, params));
                output.marginal_at(point, shift.unwrap_or(0.0))
            };
            let outputs = landscape.surrogates.outputs.iter().zip(&self.observations.modelled);
            let marginals: Vec<Marginal> = outputs.map(expected).collect();
            let objectives = marginals[..landscape.surrogates.objectives].iter();
            let end = EvaluatedPoint {
                point: point.clone(),
                values: objectives.map(Marginal::median).collect(),
                feasible: landscape.surrogates.log_kept(&marginals) >= LIKELY,
            };
            landscape.counted.push(end);
            for output in &mut landscape.surrogates.outputs {
                output.take_expected(point);
            }
        }
        let feasible = landscape.counted.iter().filter(|seen| seen.feasible);
        let values: Vec<&[f64]> = feasible.map(|seen| seen.values.as_slice()).collect();
        landscape.ehvi = (!values.is_empty()).then(|| Ehvi::new(&values, &self.observations.reference));
    }

    /// The study's constraints, and the memory above which trials fail.
    fn limits(&self, memory: Option<(usize, f64)>) -> Vec<(usize, Limit)> {
        let modelled = &self.observations.modelled;
        let limit = |constraint: &Constraint| {
            let index = modelled.iter().position(|one| one.metric == constraint.metric)?;
            let negative = modelled[index].sign < 0.0;
            let limit = match constraint.bound {
                Bound::AtMost(limit) if negative => Limit::AtLeast(-limit),
                Bound::AtMost(limit) => Limit::AtMost(limit),
                Bound::AtLeast(limit) if negative => Limit::AtMost(-limit),
                Bound::AtLeast(limit) => Limit::AtLeast(limit),
            };
            Some((index, limit))
        };
        let mut limits: Vec<(usize, Limit)> = self.problem.constraints.iter().filter_map(limit).collect();
        let ran_out = memory.filter(|_| !self.observations.ran_out.is_empty());
        if let Some((index, limit)) = ran_out.filter(|(index, _)| limits.iter().all(|(other, _)| other != index)) {
            limits.push((index, Limit::AtMost(limit)));
        }
        limits
    }

    /// A process on success (1) and failure (-1), where there was a failure that no metric explains; `with_memory` counts
    /// settings that ran out of memory among those.
    fn failure_process(&self, with_memory: bool) -> Option<Gp> {
        let ran_out = self.observations.ran_out.iter().filter(|_| with_memory);
        let ran_out = ran_out.map(|(point, _)| (point.clone(), true));
        let all: Vec<(Point, bool)> = self.observations.outcomes.iter().cloned().chain(ran_out).collect();
        // Failures count as the best: they are the rare ones.
        let order: Vec<f64> = all.iter().map(|(_, failed)| f64::from(u8::from(!failed))).collect();
        let chosen = representative(&order, MOST_OUTCOMES).into_iter();
        let outcomes: Vec<(Point, bool)> = chosen.map(|index| all[index].clone()).collect();
        if !outcomes.iter().any(|(_, failed)| *failed) {
            return None;
        }
        let target = |(point, failed): (Point, bool)| (point, if failed { -1.0 } else { 1.0 });
        let (points, targets): (Vec<Point>, Vec<f64>) = outcomes.into_iter().map(target).unzip();
        let used: Vec<usize> = (0..self.encoding.axes().len()).collect();
        let data = FitInput {
            axes: self.encoding.axes(),
            used: &used,
            points: &points,
            targets: &targets,
            noises: &[],
        };
        let fit = gp::fit(&data, Effort::Rough)?;
        Gp::new(&data, fit.hyper, None)
    }
}

/// The metric that says which settings run out of memory, where none is called memory: predicted at those settings it
/// lies above nearly all that was measured. `None` with too few to tell.
fn explaining(outputs: &[Output], observations: &Observations<'_>) -> Option<usize> {
    let points: Vec<Point> = observations.ran_out.iter().map(|(point, _)| point.clone()).collect();
    if points.len() < LEAST_TO_EXPLAIN {
        return None;
    }
    let share = |(output, data): (&Output, &MetricData<'_>)| {
        let predicted = output.predict_many(&points);
        let measured = output.predict_many(&data.points);
        let below = |mean: f64| measured.iter().filter(|(other, _)| *other < mean).count() as f64;
        let total = measured.len() * predicted.len();
        predicted.iter().map(|(mean, _)| below(*mean)).sum::<f64>() / total as f64
    };
    let shares: Vec<f64> = outputs.iter().zip(&observations.data).map(share).collect();
    let best = (0..shares.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b]))?;
    (shares[best] >= EXPLAINED).then_some(best)
}
