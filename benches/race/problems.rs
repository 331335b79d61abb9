//! The black boxes of the race, from their published formulas; every objective is minimised.

use std::f64::consts::PI;

use peft_tune_core::objective::{Direction, Objective};
use peft_tune_core::space::{Distribution, Parameter, Scale, SearchSpace};
use peft_tune_core::study::{ParamValue, Params};
use peft_tune_search::Problem;

use super::lora::{lora, lora_space, smaller};

/// A black box with its search space.
pub(crate) struct BlackBox {
    pub name: &'static str,
    pub problem: Problem,
    /// Objectives' values, or `None` where the trial runs out of memory.
    pub evaluate: fn(&Params) -> Option<Vec<f64>>,
    /// Hypervolume of the true front.
    pub most: f64,
}

const LORA_MOST: f64 = 2.188_617_034_422_086_3;
const DTLZ2_MOST: f64 = 1.331 - PI / 6.0;

/// All problems by the names of the benchmark table.
pub(crate) fn all() -> Vec<BlackBox> {
    vec![
        BlackBox {
            name: "zdt1",
            problem: problem(cube(6, 0.0, 1.0), &[("f0", 11.0), ("f1", 11.0)]),
            evaluate: |params| Some(zdt(&vector(params), false)),
            most: 120.0 + 2.0 / 3.0,
        },
        BlackBox {
            name: "zdt3",
            problem: problem(cube(6, 0.0, 1.0), &[("f0", 11.0), ("f1", 11.0)]),
            evaluate: |params| Some(zdt(&vector(params), true)),
            most: 128.778_116_130_690_76,
        },
        BlackBox {
            name: "dtlz2_3",
            problem: problem(cube(6, 0.0, 1.0), &[("f0", 1.1), ("f1", 1.1), ("f2", 1.1)]),
            evaluate: |params| Some(dtlz2(&vector(params), 0.5)),
            most: DTLZ2_MOST,
        },
        BlackBox {
            name: "vehicle",
            problem: problem(
                cube(5, 1.0, 3.0),
                &[("f0", 1864.72022), ("f1", 11.81993945), ("f2", 0.2903999384)],
            ),
            evaluate: |params| Some(vehicle(&vector(params))),
            most: 246.816_071_081_870_02,
        },
        BlackBox {
            name: "lora",
            problem: problem(lora_space(), &[("speed", 0.0), ("memory", 1.0), ("loss", 2.0)]),
            evaluate: lora,
            most: LORA_MOST,
        },
        BlackBox {
            name: "lora_blind",
            problem: problem(lora_space(), &[("f0", 0.0), ("f1", 1.0), ("f2", 2.0)]),
            evaluate: lora,
            most: LORA_MOST,
        },
        BlackBox {
            name: "lora_smaller",
            problem: problem(lora_space(), &[("speed", 0.0), ("memory", 1.0), ("loss", 2.0)]),
            evaluate: smaller,
            most: f64::NAN,
        },
        BlackBox {
            name: "zdt2",
            problem: problem(cube(6, 0.0, 1.0), &[("f0", 11.0), ("f1", 11.0)]),
            evaluate: |params| Some(zdt2(&vector(params))),
            most: 120.0 + 1.0 / 3.0,
        },
        BlackBox {
            name: "dtlz7_3",
            problem: problem(cube(6, 0.0, 1.0), &[("f0", 1.1), ("f1", 1.1), ("f2", 25.0)]),
            evaluate: |params| Some(dtlz7(&vector(params))),
            most: f64::NAN,
        },
        BlackBox {
            name: "dtlz2_off",
            problem: problem(cube(6, 0.0, 1.0), &[("f0", 1.1), ("f1", 1.1), ("f2", 1.1)]),
            evaluate: |params| Some(dtlz2(&vector(params), 0.3)),
            most: DTLZ2_MOST,
        },
        BlackBox {
            name: "rotated",
            problem: problem(cube(4, 0.0, 1.0), &[("f0", 2.0), ("f1", 2.0)]),
            evaluate: |params| Some(rotated(&vector(params))),
            most: f64::NAN,
        },
    ]
}

fn problem(space: SearchSpace, objectives: &[(&str, f64)]) -> Problem {
    let objective = |(metric, reference): &(&str, f64)| Objective {
        metric: (*metric).to_owned(),
        direction: Direction::Minimize,
        reference: Some(*reference),
        known_after: None,
    };
    Problem {
        space,
        objectives: objectives.iter().map(objective).collect(),
        constraints: Vec::new(),
    }
}

fn cube(dimensions: usize, low: f64, high: f64) -> SearchSpace {
    let parameter = |index: usize| parameter(&format!("x{index}"), float(low, high, Scale::Linear));
    SearchSpace {
        parameters: (0..dimensions).map(parameter).collect(),
    }
}

pub(crate) fn float(low: f64, high: f64, scale: Scale) -> Distribution {
    Distribution::Float {
        low,
        high,
        scale,
        step: None,
    }
}

pub(crate) fn choices<T: Into<ParamValue>>(choices: impl IntoIterator<Item = T>) -> Distribution {
    Distribution::Categorical {
        choices: choices.into_iter().map(Into::into).collect(),
    }
}

pub(crate) fn parameter(name: &str, distribution: Distribution) -> Parameter {
    Parameter {
        name: name.to_owned(),
        distribution,
        condition: None,
        affects: None,
        widest: None,
    }
}

fn vector(params: &Params) -> Vec<f64> {
    params.values().filter_map(ParamValue::as_f64).collect()
}

/// ZDT1, and ZDT3 in its published form with the factor g outside (Zitzler, Deb, Thiele 2000).
fn zdt(x: &[f64], third: bool) -> Vec<f64> {
    let g = 1.0 + 9.0 * x[1..].iter().sum::<f64>() / (x.len() - 1) as f64;
    let ratio = x[0] / g;
    let wave = if third { ratio * (10.0 * PI * x[0]).sin() } else { 0.0 };
    vec![x[0], g * (1.0 - ratio.sqrt() - wave)]
}

/// ZDT2, whose front is hollow.
fn zdt2(x: &[f64]) -> Vec<f64> {
    let g = 1.0 + 9.0 * x[1..].iter().sum::<f64>() / (x.len() - 1) as f64;
    vec![x[0], g * (1.0 - (x[0] / g).powi(2))]
}

/// DTLZ7 with three objectives: a front in four pieces.
fn dtlz7(x: &[f64]) -> Vec<f64> {
    let g = 1.0 + 9.0 * x[2..].iter().sum::<f64>() / (x.len() - 2) as f64;
    let bend = |value: &f64| value / (1.0 + g) * (1.0 + (3.0 * PI * value).sin());
    vec![x[0], x[1], (1.0 + g) * (3.0 - x[..2].iter().map(bend).sum::<f64>())]
}

/// Two bowls, squeezed along axes that are none of the parameters'.
fn rotated(x: &[f64]) -> Vec<f64> {
    let bowl = |bottom: [f64; 4]| {
        let d: Vec<f64> = x.iter().zip(bottom).map(|(value, bottom)| value - bottom).collect();
        let sum = d[0] + d[1] + d[2] + d[3];
        let across = [d[0] - d[1], d[1] - d[2], d[2] - d[3]];
        sum * sum + 4.0 * across.iter().map(|value| value * value).sum::<f64>()
    };
    vec![bowl([0.2, 0.4, 0.3, 0.6]), bowl([0.7, 0.5, 0.8, 0.4])]
}

/// DTLZ2 with three objectives (Deb et al. 2002); its front is where all but two parameters are at `bottom`.
fn dtlz2(x: &[f64], bottom: f64) -> Vec<f64> {
    let g: f64 = x[2..].iter().map(|value| (value - bottom).powi(2)).sum();
    let (a, b) = (x[0] * PI / 2.0, x[1] * PI / 2.0);
    vec![
        (1.0 + g) * a.cos() * b.cos(),
        (1.0 + g) * a.cos() * b.sin(),
        (1.0 + g) * a.sin(),
    ]
}

/// Vehicle safety, RE3-5-4 (Liao et al. 2008; Tanabe and Ishibuchi 2020).
fn vehicle(x: &[f64]) -> Vec<f64> {
    let [x1, x2, x3, x4, x5] = [x[0], x[1], x[2], x[3], x[4]];
    vec![
        1640.2823 + 2.3573285 * x1 + 2.3220035 * x2 + 4.5688768 * x3 + 7.7213633 * x4 + 4.4559504 * x5,
        6.5856 + 1.15 * x1 - 1.0427 * x2 + 0.9738 * x3 + 0.8364 * x4 - 0.3695 * x1 * x4
            + 0.0861 * x1 * x5
            + 0.3628 * x2 * x4
            - 0.1106 * x1 * x1
            - 0.3437 * x3 * x3
            + 0.1764 * x4 * x4,
        -0.0551 + 0.0181 * x1 + 0.1024 * x2 + 0.0421 * x3 - 0.0073 * x1 * x2 + 0.024 * x2 * x3
            - 0.0118 * x2 * x4
            - 0.0204 * x3 * x4
            - 0.008 * x3 * x5
            - 0.0241 * x2 * x2
            + 0.0109 * x4 * x4,
    ]
}
