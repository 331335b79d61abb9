//! Which sampler a study uses, by name.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Grid, Nsga2, Problem, Random, Sampler, Sobol, Tpe};

/// The samplers by the names that space files and the database use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SamplerKind {
    /// The best one for the problem.
    #[default]
    Auto,
    /// Independent uniform draws.
    Random,
    /// A scrambled Sobol sequence.
    Sobol,
    /// Every setting of a discrete space once.
    Grid,
    /// The genetic algorithm NSGA-II.
    Nsga2,
    /// Tree-structured Parzen estimators.
    Tpe,
    /// Gaussian processes with expected hypervolume improvement.
    Bayes,
}

impl SamplerKind {
    /// All kinds, in the order of their documentation.
    pub const ALL: [Self; 7] = [
        Self::Auto,
        Self::Random,
        Self::Sobol,
        Self::Grid,
        Self::Nsga2,
        Self::Tpe,
        Self::Bayes,
    ];

    /// The name that space files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Random => "random",
            Self::Sobol => "sobol",
            Self::Grid => "grid",
            Self::Nsga2 => "nsga2",
            Self::Tpe => "tpe",
            Self::Bayes => "bayes",
        }
    }

    /// Makes the sampler for a problem.
    ///
    /// # Errors
    /// Where the kind cannot search this problem: a grid over a continuous range, or no objective at all.
    pub fn build(self, problem: &Problem, seed: u64) -> Result<Box<dyn Sampler>, SamplerError> {
        if problem.objectives.is_empty() {
            return Err(SamplerError::NoObjective);
        }
        Ok(match self {
            Self::Auto => Box::new(Tpe::new(seed)),
            Self::Random => Box::new(Random::new(seed)),
            Self::Sobol => Box::new(Sobol::new(seed)),
            Self::Grid => Box::new(Grid::new(problem, seed)?),
            Self::Nsga2 => Box::new(Nsga2::new(seed)),
            Self::Tpe | Self::Bayes => Box::new(Tpe::new(seed)),
        })
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(formatter)
    }
}

impl FromStr for SamplerKind {
    type Err = SamplerError;

    fn from_str(name: &str) -> Result<Self, SamplerError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| SamplerError::UnknownKind { name: name.to_owned() })
    }
}

/// Why a sampler cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    #[error("sampler `{name}` is not known: use auto, random, sobol, grid, nsga2, tpe or bayes")]
    UnknownKind { name: String },
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
    fn names_are_read_back() {
        for kind in SamplerKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        assert!("smac".parse::<SamplerKind>().unwrap_err().to_string().contains("nsga2"));
    }

    #[test]
    fn every_sampler_exhausts_a_discrete_space_without_repeating_itself() {
        let problem = problem(conditional_space(), 2);
        for kind in SamplerKind::ALL {
            let mut sampler = kind.build(&problem, 7).unwrap();
            assert_eq!(drive(&mut *sampler, &problem, 50, mixed_states).len(), 9, "{kind}");
        }
    }

    #[test]
    fn every_sampler_is_a_function_of_seed_and_history() {
        let problem = problem(mixed_space(), 2);
        for kind in SamplerKind::ALL.into_iter().filter(|kind| *kind != SamplerKind::Grid) {
            let history = drive(&mut *kind.build(&problem, 3).unwrap(), &problem, 24, mixed_states);
            for count in [0, 3, 11, 23] {
                let resumed = kind.build(&problem, 3).unwrap().ask(&problem, &history[..count]);
                assert_eq!(resumed.as_ref(), Some(&history[count].params), "{kind} after {count}");
            }
            let other = kind.build(&problem, 4).unwrap().ask(&problem, &[]);
            assert_ne!(other.as_ref(), Some(&history[0].params), "{kind}");
        }
    }

    #[test]
    fn conditional_parameters_are_there_exactly_when_they_exist() {
        let problem = problem(mixed_space(), 2);
        for kind in SamplerKind::ALL.into_iter().filter(|kind| *kind != SamplerKind::Grid) {
            let history = drive(&mut *kind.build(&problem, 5).unwrap(), &problem, 40, mixed_states);
            for trial in &history {
                assert!(
                    problem.space.point_of(&trial.params).is_some(),
                    "{kind}: {:?}",
                    trial.params
                );
                assert_eq!(
                    trial.params.contains_key("momentum"),
                    trial.params["optimizer"].to_string() == "sgd",
                    "{kind}"
                );
            }
        }
    }

    #[test]
    fn an_empty_space_has_one_setting_and_no_objective_is_an_error() {
        let mut problem = problem(SearchSpace::default(), 1);
        for kind in SamplerKind::ALL {
            assert_eq!(
                drive(&mut *kind.build(&problem, 1).unwrap(), &problem, 5, mixed_states).len(),
                1
            );
        }
        problem.objectives.clear();
        assert_eq!(
            SamplerKind::Tpe.build(&problem, 1).err(),
            Some(SamplerError::NoObjective)
        );
    }
}
