//! The black boxes of the race, from their published formulas; every objective is minimised.

use std::f64::consts::PI;

use peft_tune::objective::{Direction, Objective};
use peft_tune::search::Problem;
use peft_tune::space::{Condition, Distribution, Parameter, Scale, SearchSpace};
use peft_tune::study::{ParamValue, Params};

/// A black box with its search space.
pub struct BlackBox {
    pub name: &'static str,
    pub problem: Problem,
    /// Objectives' values, or `None` where the trial runs out of memory.
    pub evaluate: fn(&Params) -> Option<Vec<f64>>,
    /// Hypervolume of the true front.
    pub most: f64,
}

/// All problems by the names of the benchmark table.
pub fn all() -> Vec<BlackBox> {
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
            evaluate: |params| Some(dtlz2(&vector(params))),
            most: 1.1f64.powi(3) - PI / 6.0,
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
            most: 2.188_617_034_422_086_3,
        },
        BlackBox {
            name: "lora_blind",
            problem: problem(lora_space(), &[("f0", 0.0), ("f1", 1.0), ("f2", 2.0)]),
            evaluate: lora,
            most: 2.188_617_034_422_086_3,
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

fn float(low: f64, high: f64, scale: Scale) -> Distribution {
    Distribution::Float {
        low,
        high,
        scale,
        step: None,
    }
}

fn choices<T: Into<ParamValue>>(choices: impl IntoIterator<Item = T>) -> Distribution {
    Distribution::Categorical {
        choices: choices.into_iter().map(Into::into).collect(),
    }
}

fn parameter(name: &str, distribution: Distribution) -> Parameter {
    Parameter {
        name: name.to_owned(),
        distribution,
        condition: None,
        affects: None,
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

/// DTLZ2 with three objectives (Deb et al. 2002).
fn dtlz2(x: &[f64]) -> Vec<f64> {
    let g: f64 = x[2..].iter().map(|value| (value - 0.5).powi(2)).sum();
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

/// Device memory of the LoRA problem in GiB, and its training steps.
pub const CAPACITY: f64 = 24.0;
pub const STEPS: f64 = 100.0;

pub fn lora_space() -> SearchSpace {
    let when = |name: &str, distribution: Distribution, parent: &str, value: &str| Parameter {
        condition: Some(Condition {
            parameter: parent.to_owned(),
            values: vec![value.into()],
        }),
        ..parameter(name, distribution)
    };
    SearchSpace {
        parameters: vec![
            parameter("rank", choices([4i64, 8, 16, 32, 64, 128, 256])),
            parameter("batch", choices([1i64, 2, 4, 8, 16, 32, 64])),
            parameter("precision", choices(["fp32", "bf16", "int8", "nf4"])),
            when("double_quant", choices([false, true]), "precision", "nf4"),
            parameter("grad_ckpt", choices([false, true])),
            parameter("optimizer", choices(["adamw", "adamw8bit", "lion", "adafactor", "sgd"])),
            when("momentum", float(0.5, 0.99, Scale::Linear), "optimizer", "sgd"),
            parameter("targets", choices(["qv", "attn", "all"])),
            parameter("lr", float(1e-5, 1e-1, Scale::Log)),
            parameter("alpha_ratio", choices([0.5, 1.0, 2.0, 4.0])),
            parameter("dropout", float(0.0, 0.2, Scale::Linear)),
        ],
    }
}

/// The settings of the LoRA problem, looked up once.
pub struct Lora<'a> {
    rank: f64,
    batch: f64,
    precision: &'a str,
    double_quant: bool,
    checkpointing: bool,
    optimizer: &'a str,
    momentum: f64,
    targets: &'a str,
    lr: f64,
    alpha_ratio: f64,
    dropout: f64,
}

impl<'a> Lora<'a> {
    pub fn new(params: &'a Params) -> Self {
        let number = |name: &str| params.get(name).and_then(ParamValue::as_f64).unwrap_or(0.9);
        let flag = |name: &str| params.get(name) == Some(&ParamValue::Bool(true));
        let text = |name: &str| match params.get(name) {
            Some(ParamValue::Text(text)) => text.as_str(),
            _ => "",
        };
        Self {
            rank: number("rank"),
            batch: number("batch"),
            precision: text("precision"),
            double_quant: flag("double_quant"),
            checkpointing: flag("grad_ckpt"),
            optimizer: text("optimizer"),
            momentum: number("momentum"),
            targets: text("targets"),
            lr: number("lr"),
            alpha_ratio: number("alpha_ratio"),
            dropout: number("dropout"),
        }
    }

    /// The entry of a list that belongs to one of the named choices.
    fn pick<const N: usize>(choice: &str, table: [(&str, f64); N]) -> f64 {
        table
            .iter()
            .find(|(name, _)| *name == choice)
            .map_or(f64::NAN, |(_, value)| *value)
    }

    fn quantised_twice(&self) -> f64 {
        f64::from(u8::from(self.double_quant))
    }

    fn per_layer(&self) -> f64 {
        Self::pick(
            self.targets,
            [
                ("qv", 4.0 * 2048.0),
                ("attn", 8.0 * 2048.0),
                ("all", 8.0 * 2048.0 + 3.0 * (2048.0 + 5632.0)),
            ],
        )
    }

    fn adapter_parameters(&self) -> f64 {
        self.rank * self.per_layer() * 24.0
    }

    fn tokens(&self) -> f64 {
        self.batch * 1024.0
    }

    pub fn memory_gib(&self) -> f64 {
        let bytes = Self::pick(
            self.precision,
            [("fp32", 4.0), ("bf16", 2.0), ("int8", 1.05), ("nf4", 0.56)],
        ) - 0.04 * self.quantised_twice();
        let state = Self::pick(
            self.optimizer,
            [
                ("adamw", 8.0),
                ("adamw8bit", 2.0),
                ("lion", 4.0),
                ("adafactor", 0.2),
                ("sgd", 4.0),
            ],
        );
        let width = if self.precision == "fp32" { 2.0 } else { 1.0 };
        let (layers, hidden) = (24.0, 2048.0);
        let kept = if self.checkpointing {
            2.0 * hidden * layers + 34.0 * hidden
        } else {
            34.0 * hidden * layers
        };
        let adapters = self.adapter_parameters();
        let side =
            2.0 * adapters / (hidden * layers) * self.tokens() * width * if self.checkpointing { 0.25 } else { 1.0 };
        let activations = width * kept * self.tokens() + side;
        let logits = 8.0 * 32000.0 * self.tokens();
        1.04 * (1.5e9 * bytes + adapters * (8.0 + state) + activations + logits) / f64::from(1u32 << 30) + 0.8
    }

    pub fn throughput(&self) -> f64 {
        let peak = Self::pick(
            self.precision,
            [("fp32", 60e12), ("bf16", 150e12), ("int8", 90e12), ("nf4", 120e12)],
        );
        let tokens = self.tokens();
        let efficiency = tokens / (tokens + 2500.0);
        let flops = tokens * (1.5e9 * if self.checkpointing { 6.0 } else { 4.0 } + 6.0 * self.adapter_parameters());
        let modules = Self::pick(self.targets, [("qv", 2.0), ("attn", 4.0), ("all", 7.0)]);
        let optimizer = Self::pick(
            self.optimizer,
            [
                ("adamw", 0.004),
                ("adamw8bit", 0.007),
                ("lion", 0.003),
                ("adafactor", 0.010),
                ("sgd", 0.002),
            ],
        );
        let dequantise = Self::pick(
            self.precision,
            [("fp32", 0.0), ("bf16", 0.0), ("int8", 0.030), ("nf4", 0.022)],
        );
        let overhead = 0.020
            + 0.0006 * 24.0 * modules / 2.0
            + optimizer
            + dequantise * if self.checkpointing { 1.5 } else { 1.0 }
            + 0.004 * self.quantised_twice();
        tokens / (overhead + flops / (peak * efficiency))
    }

    pub fn loss(&self, steps: f64) -> f64 {
        let best = Self::pick(
            self.optimizer,
            [
                ("adamw", 3e-4),
                ("adamw8bit", 3e-4),
                ("lion", 6e-5),
                ("adafactor", 8e-4),
                ("sgd", 2e-2),
            ],
        ) * (self.batch / 8.0).sqrt()
            * (2.0 / self.alpha_ratio).sqrt()
            * (32.0 / self.rank).powf(0.15);
        let off = (self.lr / best).log10();
        let penalty = off * off * if off < 0.0 { 0.45 } else { 0.9 };
        let penalty = 1.6 * (penalty / 1.6).tanh();
        let capacity = self.rank * self.per_layer() / (16.0 * 8.0 * 2048.0);
        let mut end = 1.80
            + 0.16 * capacity.powf(-0.45)
            + 0.10 * (self.dropout - 0.06).powi(2) / 0.01 * (0.3 + 0.1 * (self.rank / 4.0 + 1.0).log2())
            + Self::pick(
                self.precision,
                [("fp32", 0.0), ("bf16", 0.004), ("int8", 0.012), ("nf4", 0.035)],
            )
            + 0.004 * self.quantised_twice()
            + Self::pick(
                self.optimizer,
                [
                    ("adamw", 0.0),
                    ("adamw8bit", 0.006),
                    ("lion", 0.015),
                    ("adafactor", 0.030),
                    ("sgd", 0.10),
                ],
            );
        if self.optimizer == "sgd" {
            end += 1.2 * (self.momentum - 0.9).powi(2);
        }
        let half_life = 12.0 * (8.0 / self.batch).powf(0.35) * (1.0 + 1.5 * penalty);
        end + penalty + 1.1 * (1.0 + steps / half_life).powf(-0.9)
    }
}

/// A mixed, conditional problem shaped like LoRA tuning, with an out-of-memory region.
fn lora(params: &Params) -> Option<Vec<f64>> {
    let lora = Lora::new(params);
    let memory = lora.memory_gib();
    (memory <= CAPACITY).then(|| vec![-lora.throughput() / 10000.0, memory / CAPACITY, lora.loss(STEPS) - 1.8])
}
