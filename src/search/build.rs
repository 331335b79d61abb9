//! From a sampler's name to the sampler.

use std::sync::Arc;

use super::{Bayes, Grid, Nsga2, Prior, Problem, Random, Sampler, Sobol, Tpe};
use crate::space::SamplerKind;

/// Makes the sampler for a problem.
///
/// # Errors
/// Where the kind cannot search this problem: a grid over a continuous range, or no objective at all.
pub fn build(kind: SamplerKind, problem: &Problem, seed: u64) -> Result<Box<dyn Sampler>, SamplerError> {
    build_with_prior(kind, problem, seed, None)
}

/// As [`build`]; a sampler that can make use of a prior starts from it.
///
/// # Errors
/// As [`build`].
pub fn build_with_prior(
    kind: SamplerKind,
    problem: &Problem,
    seed: u64,
    prior: Option<Arc<dyn Prior>>,
) -> Result<Box<dyn Sampler>, SamplerError> {
    if problem.objectives.is_empty() {
        return Err(SamplerError::NoObjective);
    }
    Ok(match kind {
        // Exact improvement is for up to four objectives.
        SamplerKind::Auto | SamplerKind::Bayes if problem.objectives.len() > 4 => Box::new(Nsga2::new(seed)),
        SamplerKind::Auto | SamplerKind::Bayes => Box::new(match prior {
            Some(prior) => Bayes::new(seed).with_prior(prior),
            None => Bayes::new(seed),
        }),
        SamplerKind::Random => Box::new(Random::new(seed)),
        SamplerKind::Sobol => Box::new(Sobol::new(seed)),
        SamplerKind::Grid => Box::new(Grid::new(problem, seed)?),
        SamplerKind::Nsga2 => Box::new(Nsga2::new(seed)),
        SamplerKind::Tpe => Box::new(Tpe::new(seed)),
    })
}

/// Why a sampler cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    #[error(
        "sampler `grid` needs steps, and parameter `{parameter}` is continuous: give it `step` or a list of `choices`"
    )]
    ContinuousGrid { parameter: String },
    #[error("a study needs at least one objective: add one under `objectives`")]
    NoObjective,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::fixtures::{conditional_space, drive, mixed_space, mixed_states, problem};
    use crate::space::SearchSpace;

    #[test]
    fn every_sampler_exhausts_a_discrete_space_without_repeating_itself() {
        let problem = problem(conditional_space(), 2);
        for kind in SamplerKind::ALL {
            let mut sampler = build(kind, &problem, 7).unwrap();
            assert_eq!(drive(&mut *sampler, &problem, 50, mixed_states).len(), 9, "{kind:?}");
        }
    }

    #[test]
    fn every_sampler_is_a_function_of_seed_and_history() {
        let problem = problem(mixed_space(), 2);
        for kind in SamplerKind::ALL.into_iter().filter(|kind| *kind != SamplerKind::Grid) {
            let history = drive(&mut *build(kind, &problem, 3).unwrap(), &problem, 24, mixed_states);
            for count in [0, 3, 11, 23] {
                let resumed = build(kind, &problem, 3).unwrap().ask(&problem, &history[..count]);
                assert_eq!(resumed.as_ref(), Some(&history[count].params), "{kind:?} after {count}");
            }
            let other = build(kind, &problem, 4).unwrap().ask(&problem, &[]);
            assert_ne!(other.as_ref(), Some(&history[0].params), "{kind:?}");
        }
    }

    #[test]
    fn conditional_parameters_are_there_exactly_when_they_exist() {
        let problem = problem(mixed_space(), 2);
        for kind in SamplerKind::ALL.into_iter().filter(|kind| *kind != SamplerKind::Grid) {
            let history = drive(&mut *build(kind, &problem, 5).unwrap(), &problem, 40, mixed_states);
            for trial in &history {
                assert!(
                    problem.space.point_of(&trial.params).is_some(),
                    "{kind:?}: {:?}",
                    trial.params
                );
                assert_eq!(
                    trial.params.contains_key("momentum"),
                    trial.params["optimizer"].to_string() == "sgd",
                    "{kind:?}"
                );
            }
        }
    }

    #[test]
    fn an_empty_space_has_one_setting_and_no_objective_is_an_error() {
        let mut problem = problem(SearchSpace::default(), 1);
        for kind in SamplerKind::ALL {
            assert_eq!(
                drive(&mut *build(kind, &problem, 1).unwrap(), &problem, 5, mixed_states).len(),
                1
            );
        }
        problem.objectives.clear();
        assert_eq!(
            build(SamplerKind::Tpe, &problem, 1).err(),
            Some(SamplerError::NoObjective)
        );
    }
}
