//! NSGA-II (Deb et al. 2002) in its steady-state form (Durillo et al. 2009): each proposal is a child of the best
//! `POPULATION` trials so far.
//!
//! Design note: the crates for genetic algorithms (moors and others) own the loop and call the objective themselves. A
//! study has the loop, resumes, and runs trials side by side, so the method is written here as a function of the history;
//! the steady-state form needs no generation counter that a history could contradict.

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::history::{objective_values, violation};
use crate::pareto;
use crate::seeded::{Stream, Tried, first_untried, generator};
use crate::sobol::initial_design;
use crate::{Problem, Sampler};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, Trial, TrialState};

/// Trials that breed. Studies have tens to hundreds of trials: the literature's 50 to 100 would hardly select at all.
const POPULATION: usize = 16;
/// Probability that a child mixes two parents rather than copying one.
const CROSSOVER: f64 = 0.9;
/// Distribution index of simulated binary crossover: children stay near their parents.
const CROSSOVER_INDEX: f64 = 15.0;
/// Distribution index of polynomial mutation.
const MUTATION_INDEX: f64 = 20.0;

/// Breeds the next setting from the best trials: binary tournaments on constraint violation, Pareto rank and crowding;
/// simulated binary crossover and polynomial mutation of ordered parameters, exchange and redraw of unordered ones.
#[derive(Clone, Debug)]
pub struct Nsga2 {
    seed: u64,
}

impl Nsga2 {
    /// A sampler that starts from the Sobol sequence scrambled by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Sampler for Nsga2 {
    fn name(&self) -> &'static str {
        "nsga2"
    }

    fn follows_best(&self) -> bool {
        true
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        if history.len() < POPULATION {
            return initial_design(&problem.space, self.seed, history);
        }
        let parents = select(candidates(problem, history));
        let mut random = generator(self.seed, Stream::Nsga2, history.len());
        first_untried(&problem.space, &Tried::new(history), &mut random, |random| {
            let first = tournament(&parents, random);
            let second = tournament(&parents, random);
            child(&problem.space, first, second, random)
        })
    }
}

/// A finished trial as a parent.
#[derive(Clone, Debug)]
struct Parent<'a> {
    params: &'a Params,
    /// Coordinates in the unit cube.
    point: Vec<f64>,
    values: Vec<f64>,
    /// Infinite for a trial that failed.
    violation: f64,
}

fn candidates<'a>(problem: &Problem, history: &'a [Trial]) -> Vec<Parent<'a>> {
    let parent = |trial: &'a Trial| {
        let point = problem.space.point_of(&trial.params)?;
        let worst = || (vec![f64::INFINITY; problem.objectives.len()], f64::INFINITY);
        let (values, violation) = match &trial.state {
            TrialState::Complete { metrics } => (
                objective_values(problem, metrics)?,
                violation(&problem.constraints, metrics),
            ),
            TrialState::Failed { .. } | TrialState::Skipped { .. } => worst(),
            TrialState::Waiting | TrialState::Running | TrialState::Pruned { .. } => return None,
        };
        Some(Parent {
            params: &trial.params,
            point,
            values,
            violation,
        })
    };
    history.iter().filter_map(parent).collect()
}

/// The best `POPULATION` candidates, best first: feasible ones by rank and crowding, then the others by violation.
fn select(mut candidates: Vec<Parent<'_>>) -> Vec<Parent<'_>> {
    candidates.sort_by(|a, b| a.violation.total_cmp(&b.violation));
    let feasible = candidates.partition_point(|parent| parent.violation == 0.0);
    let others = candidates.split_off(feasible);
    let points: Vec<&[f64]> = candidates.iter().map(|parent| parent.values.as_slice()).collect();
    let ranks = pareto::ranks(&points);
    let mut order: Vec<(usize, f64, usize)> = Vec::new();
    for rank in 0..=ranks.iter().copied().max().unwrap_or(0) {
        let members: Vec<usize> = (0..points.len()).filter(|index| ranks[*index] == rank).collect();
        let layer: Vec<&[f64]> = members.iter().map(|index| points[*index]).collect();
        let crowding = pareto::crowding(&layer);
        order.extend(members.iter().zip(crowding).map(|(index, gap)| (rank, gap, *index)));
    }
    order.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
    let best = order.into_iter().map(|(_, _, index)| candidates[index].clone());
    best.chain(others).take(POPULATION).collect()
}

/// The better of two parents drawn at random (`parents` stand in order of quality), or `None` without parents.
fn tournament<'a, 'b>(parents: &'b [Parent<'a>], random: &mut Pcg64) -> Option<&'b Parent<'a>> {
    if parents.is_empty() {
        return None;
    }
    let drawn = [(); 2].map(|()| random.random_range(0..parents.len()));
    parents.get(drawn[0].min(drawn[1]))
}

fn child(space: &SearchSpace, first: Option<&Parent<'_>>, second: Option<&Parent<'_>>, random: &mut Pcg64) -> Params {
    let mixes = random.random_bool(CROSSOVER);
    let mutation = 1.0 / space.dimensions().max(1) as f64;
    let mut point = Vec::with_capacity(space.dimensions());
    for (index, parameter) in space.parameters.iter().enumerate() {
        // A parent in which the parameter is inactive has nothing to hand down.
        let gene = |parent: Option<&Parent<'_>>| {
            let parent = parent?;
            parent.params.contains_key(&parameter.name).then(|| parent.point[index])
        };
        let ordered = parameter.distribution.is_ordered();
        let inherited = match (gene(first), gene(second)) {
            (Some(a), Some(b)) if mixes && ordered => crossed(a, b, random),
            (Some(a), Some(b)) if mixes => [a, b][usize::from(random.random_bool(0.5))],
            (Some(a), _) => a,
            (None, Some(b)) => b,
            (None, None) => random.random(),
        };
        point.push(match random.random_bool(mutation) {
            true if ordered => mutated(inherited, random),
            true => random.random(),
            false => inherited,
        });
    }
    space.params_at(&point)
}

/// Simulated binary crossover of two coordinates (Deb and Agrawal 1995), one child.
fn crossed(a: f64, b: f64, random: &mut Pcg64) -> f64 {
    let u: f64 = random.random();
    let exponent = 1.0 / (CROSSOVER_INDEX + 1.0);
    let spread = if u <= 0.5 {
        (2.0 * u).powf(exponent)
    } else {
        (1.0 / (2.0 * (1.0 - u))).powf(exponent)
    };
    let side = if random.random_bool(0.5) { spread } else { -spread };
    (0.5 * ((a + b) + side * (b - a))).clamp(0.0, 1.0)
}

/// Polynomial mutation of a coordinate in [0, 1] (Deb and Goyal 1996).
fn mutated(value: f64, random: &mut Pcg64) -> f64 {
    let u: f64 = random.random();
    let exponent = 1.0 / (MUTATION_INDEX + 1.0);
    let shift = if u < 0.5 {
        (2.0 * u + (1.0 - 2.0 * u) * (1.0 - value).powf(MUTATION_INDEX + 1.0)).powf(exponent) - 1.0
    } else {
        1.0 - (2.0 * (1.0 - u) + (2.0 * u - 1.0) * value.powf(MUTATION_INDEX + 1.0)).powf(exponent)
    };
    (value + shift).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{complete, continuous_space, gain_over_random, problem};

    #[test]
    fn it_beats_random_search() {
        let gain = gain_over_random(|seed| Box::new(Nsga2::new(seed)), 120);
        assert!(gain > 0.1, "gains {gain}");
    }

    #[test]
    fn failures_rank_below_every_complete_trial() {
        let problem = problem(continuous_space(1), 1);
        let params = |value: f64| Params::from([("x0".to_owned(), value.into())]);
        let mut history = vec![complete(0, params(0.2), &[9.0]), complete(1, params(0.4), &[1.0])];
        history.push(crate::fixtures::trial(2, params(0.6), crate::fixtures::out_of_memory()));
        let order: Vec<f64> = select(candidates(&problem, &history))
            .iter()
            .map(|parent| parent.point[0])
            .collect();
        assert_eq!(order, [0.4, 0.2, 0.6]);
    }
}
