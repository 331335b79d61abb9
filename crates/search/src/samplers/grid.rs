//! Grid search: every setting of a discrete space once.

use crate::seeded::Tried;
use crate::{Problem, Sampler, SamplerError, Settings};
use peft_tune_core::study::{Params, Trial};

/// Proposes every setting once, in an order that covers the space evenly from the start.
///
/// Design note: settings are visited by a golden-ratio stride through their numbers rather than in listed order, so that a
/// grid cut short by its budget has still seen every value of every parameter.
#[derive(Clone, Debug)]
pub struct Grid {
    seed: u64,
}

impl Grid {
    /// A grid over the problem's space; `seed` chooses where it starts.
    ///
    /// # Errors
    /// [`SamplerError::ContinuousGrid`] names a parameter without steps; [`SamplerError::LargeGrid`] says that there are
    /// more settings than can be numbered.
    pub fn new(problem: &Problem, seed: u64) -> Result<Self, SamplerError> {
        let continuous = |parameter: &&peft_tune_core::space::Parameter| parameter.distribution.cardinality().is_none();
        if let Some(parameter) = problem.space.parameters.iter().find(continuous) {
            return Err(SamplerError::ContinuousGrid {
                parameter: parameter.name.clone(),
            });
        }
        match Settings::new(&problem.space) {
            Some(_) => Ok(Self { seed }),
            None => Err(SamplerError::LargeGrid { most: u64::MAX }),
        }
    }
}

impl Sampler for Grid {
    fn name(&self) -> &'static str {
        "grid"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        let settings = Settings::new(&problem.space)?;
        let tried = Tried::new(history);
        let total = settings.len();
        let stride = stride(total);
        // Other seeds start elsewhere.
        let start = self.seed % total.max(1);
        let at = |step: u64| {
            let number = (u128::from(step) * u128::from(stride) + u128::from(start)) % u128::from(total);
            settings.nth(number as u64)
        };
        // The walk begins anew each time, and ends at the first setting that is not tried.
        (0..total).filter_map(at).find(|params| !tried.contains(params))
    }
}

/// A step near `total` / golden ratio that shares no factor with `total`, so that the walk visits every number once.
fn stride(total: u64) -> u64 {
    let golden = (total as f64 * 0.618_033_988_749_895).round().max(1.0) as u64;
    (golden..golden.saturating_add(total))
        .find(|step| greatest_common_divisor(*step, total) == 1)
        .unwrap_or(1)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, drive, mixed_space, mixed_states, parameter, problem};
    use peft_tune_core::space::{Distribution, Scale, SearchSpace};

    /// A space of four parameters with so many values each.
    fn space_of(values: [i64; 4]) -> SearchSpace {
        let range = |(index, count): (usize, i64)| {
            let distribution = Distribution::Int {
                low: 1,
                high: count,
                scale: Scale::Linear,
                step: 1,
            };
            parameter(&format!("x{index}"), distribution)
        };
        SearchSpace {
            parameters: values.into_iter().enumerate().map(range).collect(),
        }
    }

    #[test]
    fn a_grid_that_cannot_be_numbered_is_refused_and_the_largest_is_walked() {
        let refused = Grid::new(&problem(space_of([1 << 16; 4]), 2), 0).unwrap_err();
        assert_eq!(refused, SamplerError::LargeGrid { most: u64::MAX });
        let problem = problem(space_of([1 << 16, 1 << 16, 1 << 16, (1 << 16) - 1]), 2);
        let history = drive(&mut Grid::new(&problem, 3).unwrap(), &problem, 5, mixed_states);
        assert_eq!(Tried::new(&history).len(), 5);
    }

    #[test]
    fn it_visits_every_setting_once() {
        let problem = problem(conditional_space(), 2);
        for seed in 0..5 {
            let mut grid = Grid::new(&problem, seed).unwrap();
            let history = drive(&mut grid, &problem, 100, mixed_states);
            assert_eq!(history.len(), 9);
            assert_eq!(Tried::new(&history).len(), 9);
        }
    }

    #[test]
    fn a_third_of_the_grid_has_seen_every_rank() {
        let problem = problem(conditional_space(), 2);
        let history = drive(&mut Grid::new(&problem, 0).unwrap(), &problem, 4, mixed_states);
        let mut ranks: Vec<String> = history.iter().map(|trial| trial.params["rank"].to_string()).collect();
        ranks.sort();
        ranks.dedup();
        assert_eq!(ranks.len(), 3);
    }

    #[test]
    fn a_continuous_parameter_is_named() {
        let error = Grid::new(&problem(mixed_space(), 2), 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sampler `grid` needs steps, and parameter `learning_rate` is continuous: give it `step` or a list of `choices`"
        );
    }
}
