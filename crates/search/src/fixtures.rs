//! Small spaces, problems and histories that the tests of this folder share.

use super::{Problem, Random, Sampler, evaluated, hypervolume, reference_point};
use peft_tune_core::objective::{Direction, Objective};
use peft_tune_core::space::{Condition, Distribution, Parameter, Scale, SearchSpace};
use peft_tune_core::study::{FailReason, Metrics, ParamValue, Params, Phase, Trial, TrialNumber, TrialState};

pub(crate) fn parameter(name: &str, distribution: Distribution) -> Parameter {
    Parameter {
        name: name.to_owned(),
        distribution,
        condition: None,
        affects: None,
        widest: None,
    }
}

pub(crate) fn categorical<T: Into<ParamValue>>(choices: impl IntoIterator<Item = T>) -> Distribution {
    Distribution::Categorical {
        choices: choices.into_iter().map(Into::into).collect(),
    }
}

pub(crate) fn unit_interval() -> Distribution {
    Distribution::Float {
        low: 0.0,
        high: 1.0,
        scale: Scale::Linear,
        step: None,
    }
}

/// `x0`, `x1`, ... in [0, 1].
pub(crate) fn continuous_space(dimensions: usize) -> SearchSpace {
    SearchSpace {
        parameters: (0..dimensions)
            .map(|index| parameter(&format!("x{index}"), unit_interval()))
            .collect(),
    }
}

/// Ranks 4, 8, 16; an optimizer; a momentum that exists for SGD only. Nine settings.
pub(crate) fn conditional_space() -> SearchSpace {
    let mut momentum = parameter("momentum", categorical([0.5, 0.9]));
    momentum.condition = Some(Condition {
        parameter: "optimizer".to_owned(),
        values: vec!["sgd".into()],
    });
    SearchSpace {
        parameters: vec![
            parameter("rank", categorical([4i64, 8, 16])),
            parameter("optimizer", categorical(["adamw", "sgd"])),
            momentum,
        ],
    }
}

/// A learning rate beside [`conditional_space`]'s parameters.
pub(crate) fn mixed_space() -> SearchSpace {
    let mut space = conditional_space();
    space.parameters.push(parameter(
        "learning_rate",
        Distribution::Float {
            low: 1e-5,
            high: 1e-1,
            scale: Scale::Log,
            step: None,
        },
    ));
    space
}

/// Minimises `f0`, `f1`, ... with reference 1.1 each.
pub(crate) fn problem(space: SearchSpace, objectives: usize) -> Problem {
    Problem {
        space,
        objectives: (0..objectives)
            .map(|index| Objective {
                metric: format!("f{index}"),
                direction: Direction::Minimize,
                reference: Some(1.1),
                known_after: None,
            })
            .collect(),
        constraints: Vec::new(),
    }
}

pub(crate) fn complete(number: usize, params: Params, values: &[f64]) -> Trial {
    let mut metrics = Metrics::default();
    for (index, value) in values.iter().enumerate() {
        metrics.insert(format!("f{index}"), *value);
    }
    trial(number, params, TrialState::Complete { metrics })
}

pub(crate) fn trial(number: usize, params: Params, state: TrialState) -> Trial {
    Trial {
        number: TrialNumber(number as u64),
        params,
        state,
    }
}

pub(crate) fn out_of_memory() -> TrialState {
    TrialState::Failed {
        reason: FailReason::OutOfMemory {
            phase: Phase::Profile,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        },
        metrics: Metrics::default(),
    }
}

/// Asks and tells `count` times (or until nothing is left); `evaluate` gives the state of each setting.
pub(crate) fn drive(
    sampler: &mut dyn Sampler,
    problem: &Problem,
    count: usize,
    mut evaluate: impl FnMut(usize, &Params) -> TrialState,
) -> Vec<Trial> {
    let mut history: Vec<Trial> = Vec::new();
    while history.len() < count {
        let Some(params) = sampler.ask(problem, &history) else {
            break;
        };
        let state = evaluate(history.len(), &params);
        history.push(trial(history.len(), params, state));
    }
    history
}

/// Ends trials in every way there is, by turns.
pub(crate) fn mixed_states(number: usize, params: &Params) -> TrialState {
    match number % 6 {
        1 => out_of_memory(),
        3 => TrialState::Skipped {
            reason: "does not fit".to_owned(),
        },
        5 => TrialState::Running,
        _ => {
            let rank = params.get("rank").and_then(ParamValue::as_f64).unwrap_or(1.0);
            let sgd = f64::from(u8::from(params.contains_key("momentum")));
            TrialState::Complete {
                metrics: [("f0", rank / 16.0), ("f1", sgd + 1.0 / rank)].into(),
            }
        }
    }
}

/// Hypervolume of all complete trials, from the reference point of the history itself.
pub(crate) fn volume(problem: &Problem, history: &[Trial]) -> f64 {
    let complete = evaluated(problem, history);
    let reference = reference_point(problem, &complete);
    let values: Vec<Vec<f64>> = complete.into_iter().map(|one| one.values).collect();
    hypervolume(&values, &reference)
}

/// How much more hypervolume a sampler reaches than random search, mean of four seeds, on a convex front of two
/// objectives: f0 = x0, f1 = (1 - sqrt x0) + distance of the other three from 0.3.
pub(crate) fn gain_over_random(sampler: impl Fn(u64) -> Box<dyn Sampler>, trials: usize) -> f64 {
    let problem = problem(continuous_space(4), 2);
    let evaluate = |_: usize, params: &Params| {
        let x: Vec<f64> = params.values().filter_map(ParamValue::as_f64).collect();
        let rest: f64 = x[1..].iter().map(|value| (value - 0.3).abs()).sum();
        TrialState::Complete {
            metrics: [("f0", x[0]), ("f1", 1.0 - x[0].sqrt() + rest)].into(),
        }
    };
    let volume = |sampler: &mut dyn Sampler| {
        let history = drive(sampler, &problem, trials, evaluate);
        let values: Vec<Vec<f64>> = evaluated(&problem, &history)
            .into_iter()
            .map(|one| one.values)
            .collect();
        hypervolume(&values, &[1.1, 1.1])
    };
    let gains = (0..4).map(|seed| volume(sampler(seed).as_mut()) - volume(&mut Random::new(seed)));
    gains.sum::<f64>() / 4.0
}
