//! Samplers by their names.

use crate::samplers::{MOST_OBJECTIVES, Request};
use crate::{Knowledge, Problem, Sampler, SamplerChoice, SamplerError, SamplerKind};

/// Makes the sampler for a problem, with its defaults.
///
/// # Errors
/// Where the kind cannot search this problem: a grid over a continuous range or over more settings than can be
/// numbered, or no objective at all.
pub fn build(kind: SamplerKind, problem: &Problem, seed: u64) -> Result<Box<dyn Sampler>, SamplerError> {
    let options = Default::default();
    build_with(&SamplerChoice { kind, options }, problem, seed, Knowledge::default())
}

/// Makes the sampler that a study asks for; one that can make use of what is known starts from it. `auto` is the Bayesian one
/// for up to four objectives and NSGA-II for more.
///
/// | option | of | meaning |
/// |---|---|---|
/// | `initial` | `auto`, `bayes` | settings tried before the first model (2 or more) |
/// | `per_cost` | `auto`, `bayes` | metric (seconds, say) by whose predicted value the expected improvement is divided |
///
/// # Errors
/// Errors of [`build`], and where an option is not known or its value is not allowed.
pub fn build_with(
    choice: &SamplerChoice,
    problem: &Problem,
    seed: u64,
    knowledge: Knowledge,
) -> Result<Box<dyn Sampler>, SamplerError> {
    if problem.objectives.is_empty() {
        return Err(SamplerError::NoObjective);
    }
    let many = problem.objectives.len() > MOST_OBJECTIVES;
    let kind = match choice.kind {
        SamplerKind::Auto if many => SamplerKind::Nsga2,
        SamplerKind::Auto => SamplerKind::Bayes,
        kind => kind,
    };
    let known = kind.options();
    if let Some(option) = choice.options.keys().find(|option| !known.contains(&option.as_str())) {
        return Err(SamplerError::UnknownOption {
            sampler: kind.name(),
            option: option.clone(),
            known: known.join(", "),
        });
    }
    kind.make(Request {
        problem,
        seed,
        options: &choice.options,
        knowledge,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{conditional_space, drive, mixed_space, mixed_states, problem};
    use peft_tune_core::space::SearchSpace;
    use peft_tune_core::study::ParamValue;

    #[test]
    fn every_sampler_exhausts_a_discrete_space_without_repeating_itself() {
        let problem = problem(conditional_space(), 2);
        for &kind in SamplerKind::ALL {
            let mut sampler = build(kind, &problem, 7).unwrap();
            assert_eq!(drive(&mut *sampler, &problem, 50, mixed_states).len(), 9, "{kind:?}");
        }
    }

    #[test]
    fn every_sampler_is_a_function_of_seed_and_history() {
        let problem = problem(mixed_space(), 2);
        for &kind in SamplerKind::ALL.iter().filter(|kind| **kind != SamplerKind::Grid) {
            let history = drive(&mut *build(kind, &problem, 3).unwrap(), &problem, 24, mixed_states);
            for count in [0, 3, 11, 23] {
                let resumed = build(kind, &problem, 3).unwrap().ask(&problem, &history[..count]);
                assert_eq!(resumed.as_ref(), Some(&history[count].params), "{kind:?} after {count}");
            }
            let others = drive(&mut *build(kind, &problem, 4).unwrap(), &problem, 4, mixed_states);
            assert_ne!(others, history[..4], "{kind:?}");
        }
    }

    #[test]
    fn options_change_the_sampler_and_wrong_ones_are_refused() {
        let problem = problem(mixed_space(), 2);
        let choice = |kind, options: &[(&str, ParamValue)]| SamplerChoice {
            kind,
            options: options
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        };
        let built = |choice: &SamplerChoice| build_with(choice, &problem, 1, Knowledge::default());
        let long = choice(
            SamplerKind::Auto,
            &[("initial", 12i64.into()), ("per_cost", "f0".into())],
        );
        let history = drive(&mut *built(&long).unwrap(), &problem, 14, mixed_states);
        // Both start alike; the longer design still follows the sequence where the other has a model.
        let other = drive(
            &mut *build(SamplerKind::Auto, &problem, 1).unwrap(),
            &problem,
            12,
            mixed_states,
        );
        assert_eq!(history[..6], other[..6]);
        assert_ne!(history[..12], other[..]);
        for (kind, name, value, said) in [
            (SamplerKind::Bayes, "initial", ParamValue::Int(1), "whole number from 2"),
            (SamplerKind::Bayes, "per_cost", ParamValue::Int(1), "name of a metric"),
            (SamplerKind::Bayes, "depth", ParamValue::Int(1), "use initial, per_cost"),
            (
                SamplerKind::Tpe,
                "initial",
                ParamValue::Int(5),
                "it has none; remove it",
            ),
        ] {
            let error = built(&choice(kind, &[(name, value)])).err().unwrap();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.option(), Some(name));
        }
    }

    #[test]
    fn auto_takes_any_number_of_objectives() {
        let five = problem(mixed_space(), 5);
        assert_eq!(build(SamplerKind::Auto, &five, 1).unwrap().name(), "nsga2");
        let refused = build(SamplerKind::Bayes, &five, 1).err().unwrap();
        assert_eq!(refused, SamplerError::ManyObjectives { objectives: 5 });
        assert_eq!(
            build(SamplerKind::Auto, &problem(mixed_space(), 4), 1).unwrap().name(),
            "bayes"
        );
    }

    #[test]
    fn conditional_parameters_are_there_exactly_when_they_exist() {
        let problem = problem(mixed_space(), 2);
        for &kind in SamplerKind::ALL.iter().filter(|kind| **kind != SamplerKind::Grid) {
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
        for &kind in SamplerKind::ALL {
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
