//! The tree-structured Parzen estimator for several objectives (Bergstra et al. 2011; Ozaki et al. 2022), multivariate.
//!
//! The history is split into a good part and the rest. l and g are kernel densities of the two; among candidates drawn from
//! l the one with the highest l / g is proposed.
//!
//! | name | meaning |
//! |---|---|
//! | component | the kernel around one trial: a product over its active parameters |
//! | l, g | mean over the components of the good part / of the rest, one uniform component added to each |

use rand::RngExt;
use rand_distr::{Distribution as _, Normal};
use rand_pcg::Pcg64;

use crate::history::{evaluated, objective_values, violation};
use crate::hypervolume::greedy_subset;
use crate::seeded::{Stream, Tried, first_untried, generator};
use crate::sobol::initial_design;
use crate::{Problem, Sampler, normal, pareto, reference_point};
use peft_tune_core::space::{Distribution, Parameter, SearchSpace};
use peft_tune_core::study::{Params, Trial, TrialState};

/// Sobol trials before the densities mean anything.
const INITIAL: usize = 10;
/// Share of the finished trials that are good, and the most of them.
const GOOD_SHARE: f64 = 0.15;
const GOOD_MOST: usize = 25;
/// Candidates drawn from l for one proposal.
const CANDIDATES: usize = 32;
/// Bandwidth of one component's kernel in the unit interval, before it shrinks with their number.
const BANDWIDTH: f64 = 0.2;
/// Least bandwidth: below it the densities are spikes.
const LEAST_BANDWIDTH: f64 = 0.01;

/// Proposes where good trials are dense and poor ones are not.
#[derive(Clone, Debug)]
pub struct Tpe {
    seed: u64,
}

impl Tpe {
    /// A sampler that starts from the Sobol sequence scrambled by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Sampler for Tpe {
    fn name(&self) -> &'static str {
        "tpe"
    }

    fn follows_best(&self) -> bool {
        true
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        if history.len() < INITIAL {
            return initial_design(&problem.space, self.seed, history);
        }
        let (good, rest) = split(problem, history);
        let good = Density::new(&problem.space, good);
        let rest = Density::new(&problem.space, rest);
        let mut random = generator(self.seed, Stream::Tpe, history.len());
        let tried = Tried::new(history);
        first_untried(&problem.space, &tried, &mut random, |random| {
            let mut best: Option<(f64, Params)> = None;
            for _ in 0..CANDIDATES {
                let params = good.draw(random);
                let score = good.log_density(&params) - rest.log_density(&params);
                // An untried candidate is better than any tried one.
                let score = if tried.contains(&params) {
                    f64::NEG_INFINITY
                } else {
                    score
                };
                if best.as_ref().is_none_or(|(other, _)| score > *other) {
                    best = Some((score, params));
                }
            }
            best.map_or_else(Params::new, |(_, params)| params)
        })
    }
}

/// Splits the history into good settings and the rest: feasible trials by Pareto rank and by what they add to the
/// hypervolume, then infeasible ones by violation. Those that failed or were stopped are never good, however few did
/// not. Trials under way count to the rest, so that proposals made side by side keep apart.
fn split<'a>(problem: &Problem, history: &'a [Trial]) -> (Vec<&'a Params>, Vec<&'a Params>) {
    let mut feasible: Vec<(&Params, Vec<f64>)> = Vec::new();
    let mut infeasible: Vec<(&Params, f64)> = Vec::new();
    let mut without_values: Vec<&Params> = Vec::new();
    for trial in history {
        let values = match &trial.state {
            TrialState::Complete { metrics } => {
                objective_values(problem, metrics).map(|values| (values, violation(&problem.constraints, metrics)))
            }
            _ => None,
        };
        match values {
            Some((values, 0.0)) => feasible.push((&trial.params, values)),
            Some((_, violation)) => infeasible.push((&trial.params, violation)),
            None => without_values.push(&trial.params),
        }
    }
    let finished = history.iter().filter(|trial| trial.state.is_finished()).count();
    let count = ((finished as f64 * GOOD_SHARE).ceil() as usize).min(GOOD_MOST);
    infeasible.sort_by(|a, b| a.1.total_cmp(&b.1));
    let values: Vec<Vec<f64>> = feasible.iter().map(|(_, values)| values.clone()).collect();
    let order = by_quality(&values, &reference_point(problem, &evaluated(problem, history)), count);
    let mut ordered: Vec<&Params> = order.into_iter().map(|index| feasible[index].0).collect();
    ordered.extend(infeasible.into_iter().map(|(params, _)| params));
    let mut rest = ordered.split_off(count.min(ordered.len()));
    rest.extend(without_values);
    (ordered, rest)
}

/// Indices of `values`, best first; the layer that `count` cuts through is ordered greedily by hypervolume gained.
fn by_quality(values: &[Vec<f64>], reference: &[f64], count: usize) -> Vec<usize> {
    let ranks = pareto::ranks(values);
    let mut order: Vec<usize> = Vec::with_capacity(values.len());
    for rank in 0..=ranks.iter().copied().max().unwrap_or(0) {
        let layer: Vec<usize> = (0..values.len()).filter(|index| ranks[*index] == rank).collect();
        let of_layer: Vec<&[f64]> = layer.iter().map(|index| values[*index].as_slice()).collect();
        let cut = count.saturating_sub(order.len());
        let first = greedy_subset(&of_layer, reference, cut.min(layer.len().saturating_sub(1)));
        order.extend(first.iter().map(|index| layer[*index]));
        let rest = (0..layer.len()).filter(|index| !first.contains(index));
        order.extend(rest.map(|index| layer[index]));
    }
    order
}

/// Kernel density over params.
struct Density<'a> {
    space: &'a SearchSpace,
    components: Vec<&'a Params>,
    bandwidth: f64,
}

impl<'a> Density<'a> {
    fn new(space: &'a SearchSpace, components: Vec<&'a Params>) -> Self {
        // Scott's rule for the number of points and dimensions.
        let exponent = -1.0 / (space.dimensions() as f64 + 4.0);
        let bandwidth = BANDWIDTH * (components.len().max(1) as f64).powf(exponent);
        Self {
            space,
            components,
            bandwidth: bandwidth.max(LEAST_BANDWIDTH),
        }
    }

    /// Draws from one component, or from the uniform one.
    fn draw(&self, random: &mut Pcg64) -> Params {
        let component = self.components.get(random.random_range(0..=self.components.len()));
        let mut params = Params::new();
        for parameter in &self.space.parameters {
            if !self.space.is_active(parameter, &params) {
                continue;
            }
            let unit = match component.and_then(|component| self.unit(parameter, component)) {
                None => random.random(),
                Some(centre) if parameter.distribution.is_ordered() => self.near(centre, random),
                Some(centre) if random.random_bool(1.0 - self.redrawn()) => centre,
                Some(_) => random.random(),
            };
            params.insert(parameter.name.clone(), parameter.distribution.value_at(unit));
        }
        params
    }

    fn log_density(&self, params: &Params) -> f64 {
        let logs: Vec<f64> = self
            .components
            .iter()
            .map(|component| self.log_kernel(component, params))
            .chain([0.0])
            .collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logs.iter().map(|log| (log - most).exp()).sum();
        most + sum.ln() - (logs.len() as f64).ln()
    }

    /// Log density of one component relative to the uniform one; a parameter it does not have counts as uniform.
    fn log_kernel(&self, component: &Params, params: &Params) -> f64 {
        let one = |parameter: &Parameter| {
            let (Some(centre), Some(unit)) = (self.unit(parameter, component), self.unit(parameter, params)) else {
                return 0.0;
            };
            if parameter.distribution.is_ordered() {
                let mass =
                    normal::cumulative((1.0 - centre) / self.bandwidth) - normal::cumulative(-centre / self.bandwidth);
                normal::log_density((unit - centre) / self.bandwidth) - (self.bandwidth * mass).ln()
            } else {
                let choices = choices(&parameter.distribution);
                let same = if centre == unit { 1.0 - self.redrawn() } else { 0.0 };
                (same * choices + self.redrawn()).ln()
            }
        };
        self.space.parameters.iter().map(one).sum()
    }

    /// Probability that an unordered parameter is drawn again rather than copied.
    fn redrawn(&self) -> f64 {
        (1.5 * self.bandwidth).min(1.0)
    }

    /// A normal draw around `centre`, cut to the unit interval.
    fn near(&self, centre: f64, random: &mut Pcg64) -> f64 {
        let Ok(kernel) = Normal::new(centre, self.bandwidth) else {
            return centre;
        };
        let mut draws = std::iter::repeat_with(|| kernel.sample(random)).take(64);
        draws.find(|unit| (0.0..=1.0).contains(unit)).unwrap_or(centre)
    }

    fn unit(&self, parameter: &Parameter, params: &Params) -> Option<f64> {
        parameter.distribution.unit_of(params.get(&parameter.name)?)
    }
}

fn choices(distribution: &Distribution) -> f64 {
    distribution.cardinality().unwrap_or(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, gain_over_random, mixed_space, out_of_memory, problem, trial};
    use peft_tune_core::study::ParamValue;

    #[test]
    fn it_beats_random_search() {
        let gain = gain_over_random(|seed| Box::new(Tpe::new(seed)), 60);
        assert!(gain > 0.1, "gains {gain}");
    }

    #[test]
    fn what_failed_or_is_under_way_is_not_good_however_little_else_there_is() {
        let problem = problem(continuous_space(1), 1);
        let params = |number: usize| Params::from([("x0".to_owned(), (number as f64 / 40.0).into())]);
        let mut history: Vec<Trial> = (0..20)
            .map(|number| trial(number, params(number), out_of_memory()))
            .collect();
        history.push(trial(20, params(20), TrialState::Running));
        assert!(split(&problem, &history).0.is_empty());
        history.push(complete(21, params(21), &[0.5]));
        let (good, rest) = split(&problem, &history);
        assert_eq!(good, [&params(21)]);
        assert_eq!(rest.len(), 21);
    }

    #[test]
    fn density_is_highest_at_its_component_and_integrates_to_one() {
        let space = continuous_space(1);
        let at = |value: f64| Params::from([("x0".to_owned(), value.into())]);
        let centre = at(0.9);
        let density = Density::new(&space, vec![&centre]);
        let values: Vec<f64> = (0..1000)
            .map(|step| density.log_density(&at((f64::from(step) + 0.5) / 1000.0)).exp())
            .collect();
        assert!((values.iter().sum::<f64>() / 1000.0 - 1.0).abs() < 1e-3);
        let most = values.iter().copied().fold(0.0, f64::max);
        assert!((values[900] - most).abs() < 1e-2);
    }

    #[test]
    fn a_parameter_the_component_lacks_counts_as_uniform() {
        let space = mixed_space();
        let params = |optimizer: &str, momentum: Option<f64>| {
            let mut params = Params::from([
                ("rank".to_owned(), ParamValue::Int(8)),
                ("optimizer".to_owned(), optimizer.into()),
                ("learning_rate".to_owned(), 1e-3.into()),
            ]);
            params.extend(momentum.map(|value| ("momentum".to_owned(), value.into())));
            params
        };
        let component = params("adamw", None);
        let density = Density::new(&space, vec![&component]);
        let log = |momentum| density.log_kernel(&component, &params("sgd", Some(momentum)));
        assert_eq!(log(0.5), log(0.9));
    }
}
