//! Trials of earlier studies as further observations with a bias and a noise of their own.
//!
//! Another data set, another length of training or another version of a driver moves a metric, mostly as a whole. So the
//! earlier trials' surrogate predicts what this study has measured; the mean difference, drawn towards none where few are
//! known, is added to every earlier value, and what is left of the differences is the uncertainty that each of them gets beside the usual noise. Where both
//! are positive (or both negative) throughout, differences are those of logarithms. Before anything is measured, the
//! uncertainty is a share of the spread of the earlier values; where the differences turn out as large as that spread, the
//! earlier study says nothing of this one and is left out.

use super::marginal::Shape;
use super::observations::{MetricData, Modelled, Observations};
use super::output::{Output, representative};
use crate::Prior;
use crate::Problem;
use crate::encode::{Encoding, Point};
use crate::history::pareto_front;
use crate::seeded::Tried;
use peft_tune_core::study::{Params, Trial};

/// Fewest earlier values that make a surrogate.
const LEAST: usize = 4;
/// Most earlier values that are taken.
const MOST: usize = 150;
/// Settings of the earlier front that are tried first.
const FIRST: usize = 3;
/// Deviation of the differences that is believed before any is known, as a share of the earlier values' spread, and the
/// number of measurements that this belief weighs as much as.
const BELIEVED_SHARE: f64 = 0.25;
const BELIEVED_WEIGHT: f64 = 2.0;
/// Share of the spread from which on the earlier values say nothing.
const USELESS: f64 = 0.8;

/// The setting to begin with, of those spread over the earlier front; `None` once they are tried.
pub(super) fn first_setting(problem: &Problem, earlier: &[Trial], history: &[Trial]) -> Option<Params> {
    let mut front = pareto_front(problem, earlier);
    front.sort_by(|a, b| a.values[0].total_cmp(&b.values[0]));
    let tried = Tried::new(history);
    let last = front.len().checked_sub(1)?;
    // The middle first, as it says most of what a balanced setting reaches now.
    let places = [last / 2, 0, last].into_iter().take(FIRST);
    let mut settings = places.map(|place| &front[place].trial.params);
    settings.find(|params| !tried.contains(params)).cloned()
}

/// Number of trials before the first model, where earlier ones are known.
pub(super) const BEFORE_MODEL: usize = FIRST;

impl<'a> Observations<'a> {
    /// Adds the values of earlier trials to every metric for which they say something.
    pub(super) fn take_earlier(
        &mut self,
        problem: &Problem,
        encoding: &Encoding,
        earlier: &'a [Trial],
        cost: Option<&str>,
    ) {
        let past = Self::new(problem, encoding, earlier, cost);
        for (index, data) in past.data.into_iter().enumerate() {
            let modelled = &self.modelled[index];
            if let Some(aligned) = aligned(
                encoding,
                modelled,
                data.part(&representative(&data.values, MOST)),
                &self.data[index],
            ) {
                let now = &mut self.data[index];
                now.points.extend(aligned.points);
                now.params.extend(aligned.params);
                now.values.extend(aligned.values);
                now.deviations.extend(aligned.deviations);
            }
        }
    }
}

/// Earlier values moved to where this study's lie, with their uncertainty; `None` where they say nothing.
fn aligned<'a>(
    encoding: &Encoding,
    modelled: &Modelled,
    past: MetricData<'a>,
    now: &MetricData<'_>,
) -> Option<MetricData<'a>> {
    if past.values.len() < LEAST {
        return None;
    }
    let shape = shape_of(past.values.iter().chain(&now.values));
    let inner: Vec<f64> = past
        .values
        .iter()
        .map(|value| shape.inner(*value))
        .collect::<Option<_>>()?;
    let mean = inner.iter().sum::<f64>() / inner.len() as f64;
    let spread = (inner.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / inner.len() as f64).sqrt();
    let no_prior: Option<&dyn Prior> = None;
    let surrogate = Output::fit(encoding, modelled, &past, no_prior)?;
    let difference = |(point, value): (&Point, &f64)| {
        let expected = shape.inner(surrogate.marginal_at(point, 0.0).median())?;
        Some(shape.inner(*value)? - expected)
    };
    let differences: Vec<f64> = now.points.iter().zip(&now.values).filter_map(difference).collect();
    let count = differences.len() as f64;
    let bias = differences.iter().sum::<f64>() / (count + 1.0);
    let squares: f64 = differences.iter().map(|one| (one - bias).powi(2)).sum();
    let believed = BELIEVED_SHARE * spread;
    let noise = ((squares + BELIEVED_WEIGHT * believed * believed) / (count + BELIEVED_WEIGHT)).sqrt();
    if !noise.is_finite() || noise <= 0.0 || noise > USELESS * spread {
        return None;
    }
    let values: Vec<f64> = inner.iter().map(|value| shape.outer(value + bias)).collect();
    let deviation = |(value, own): (&f64, &f64)| (noise / shape.inner_slope(*value)).hypot(*own);
    Some(MetricData {
        deviations: values.iter().zip(&past.deviations).map(deviation).collect(),
        values,
        points: past.points,
        params: past.params,
        bounds: Vec::new(),
    })
}

fn shape_of<'v>(values: impl Iterator<Item = &'v f64> + Clone) -> Shape {
    if values.clone().all(|value| *value > 0.0) {
        Shape::Log
    } else if values.clone().all(|value| *value < 0.0) {
        Shape::MinusLog
    } else {
        Shape::Plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, drive, problem, volume};
    use crate::{Bayes, Sampler};
    use peft_tune_core::study::{ParamValue, TrialState};

    /// Two bowls with their bottoms at `at` and 1 - `at`, above a floor that is stretched by `scale`.
    fn bowls(params: &Params, at: f64, scale: f64) -> [f64; 2] {
        let number = |value: &ParamValue| value.as_f64().unwrap_or(0.0);
        let bowl = |bottom: f64| {
            params
                .values()
                .map(|value| (number(value) - bottom).powi(2))
                .sum::<f64>()
        };
        [scale * (0.05 + bowl(at)), scale * (0.05 + bowl(1.0 - at))]
    }

    fn run(problem: &Problem, sampler: &mut dyn Sampler, trials: usize, at: f64, scale: f64) -> Vec<Trial> {
        drive(sampler, problem, trials, |_, params| {
            let [f0, f1] = bowls(params, at, scale);
            TrialState::Complete {
                metrics: [("f0", f0), ("f1", f1)].into(),
            }
        })
    }

    #[test]
    fn an_earlier_study_of_a_shifted_problem_finds_the_front_faster() {
        let problem = problem(continuous_space(4), 2);
        let (mut cold, mut warm) = (0.0, 0.0);
        for seed in 0..3 {
            let earlier = run(&problem, &mut Bayes::new(50 + seed), 24, 0.3, 1.0);
            cold += volume(&problem, &run(&problem, &mut Bayes::new(seed), 9, 0.33, 1.3));
            let mut sampler = Bayes::new(seed).with_earlier(earlier);
            warm += volume(&problem, &run(&problem, &mut sampler, 9, 0.33, 1.3));
        }
        assert!(warm > 1.02 * cold, "{warm} {cold}");
    }

    #[test]
    fn an_earlier_study_that_misleads_costs_little() {
        let problem = problem(continuous_space(4), 2);
        let (mut cold, mut warm) = (0.0, 0.0);
        for seed in 0..3 {
            let earlier = run(&problem, &mut Bayes::new(50 + seed), 24, 0.95, 3.0);
            cold += volume(&problem, &run(&problem, &mut Bayes::new(seed), 20, 0.25, 1.0));
            let mut sampler = Bayes::new(seed).with_earlier(earlier);
            warm += volume(&problem, &run(&problem, &mut sampler, 20, 0.25, 1.0));
        }
        assert!(warm > 0.97 * cold, "{warm} {cold}");
    }

    #[test]
    fn it_begins_with_settings_of_the_earlier_front() {
        let problem = problem(continuous_space(1), 2);
        let params = |x: f64| Params::from([("x0".to_owned(), ParamValue::Float(x))]);
        let earlier = [
            complete(0, params(0.1), &[0.1, 0.9]),
            complete(1, params(0.5), &[0.5, 0.5]),
            complete(2, params(0.9), &[0.9, 0.1]),
            complete(3, params(0.7), &[0.95, 0.95]),
        ];
        let sampler = Bayes::new(1).with_earlier(earlier.to_vec());
        let mut history: Vec<Trial> = Vec::new();
        for expected in [0.5, 0.1, 0.9] {
            let proposal = sampler.propose(&problem, &history).unwrap();
            assert_eq!(proposal.params, params(expected));
            history.push(complete(history.len(), proposal.params, &[expected, 1.0 - expected]));
        }
        assert!(sampler.propose(&problem, &history).unwrap().log_acquisition.is_some());
    }
}
