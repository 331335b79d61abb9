//! A mixed, conditional problem shaped like LoRA tuning, with a region that runs out of memory.

use peft_tune_core::space::{Condition, Distribution, Parameter, Scale, SearchSpace};
use peft_tune_core::study::{ParamValue, Params};

use super::problems::{choices, float, parameter};

/// Steps of a whole trial.
pub(crate) const STEPS: f64 = 100.0;

/// Device memory of the published problem in GiB.
pub(crate) const CAPACITY: f64 = 24.0;

/// Machine in which the published problem and a variation of it differ.
#[derive(Clone, Copy)]
struct Machine {
    capacity_gib: f64,
    /// Weights of the base model.
    weights: f64,
    /// Factor on every optimizer's best learning rate.
    rate: f64,
}

const PUBLISHED: Machine = Machine {
    capacity_gib: CAPACITY,
    weights: 1.5e9,
    rate: 1.0,
};
const SMALLER: Machine = Machine {
    capacity_gib: 16.0,
    weights: 0.9e9,
    rate: 0.25,
};

pub(crate) fn lora_space() -> SearchSpace {
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
pub(crate) struct Lora<'a> {
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
    machine: Machine,
}

impl<'a> Lora<'a> {
    /// Makes a LoRA on the published problem's machine.
    pub(crate) fn new(params: &'a Params) -> Self {
        Self::on(params, PUBLISHED)
    }

    fn on(params: &'a Params, machine: Machine) -> Self {
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
            machine,
        }
    }

    /// The entry of a list that belongs to one of the named choices.
    fn pick<const N: usize>(choice: &str, table: [(&str, f64); N]) -> f64 {
        table
            .iter()
            .find(|(name, _)| *name == choice)
            .map_or(f64::NAN, |(_, value)| *value)
    }

    fn quantized_twice(&self) -> f64 {
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

    pub(crate) fn memory_gib(&self) -> f64 {
        let bytes = Self::pick(
            self.precision,
            [("fp32", 4.0), ("bf16", 2.0), ("int8", 1.05), ("nf4", 0.56)],
        ) - 0.04 * self.quantized_twice();
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
        1.04 * (self.machine.weights * bytes + adapters * (8.0 + state) + activations + logits) / f64::from(1u32 << 30)
            + 0.8
    }

    pub(crate) fn throughput(&self) -> f64 {
        let peak = Self::pick(
            self.precision,
            [("fp32", 60e12), ("bf16", 150e12), ("int8", 90e12), ("nf4", 120e12)],
        );
        let tokens = self.tokens();
        let efficiency = tokens / (tokens + 2500.0);
        let flops = tokens
            * (self.machine.weights * if self.checkpointing { 6.0 } else { 4.0 } + 6.0 * self.adapter_parameters());
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
        let dequantize = Self::pick(
            self.precision,
            [("fp32", 0.0), ("bf16", 0.0), ("int8", 0.030), ("nf4", 0.022)],
        );
        let overhead = 0.020
            + 0.0006 * 24.0 * modules / 2.0
            + optimizer
            + dequantize * if self.checkpointing { 1.5 } else { 1.0 }
            + 0.004 * self.quantized_twice();
        tokens / (overhead + flops / (peak * efficiency))
    }

    pub(crate) fn loss(&self, steps: f64) -> f64 {
        let best = Self::pick(
            self.optimizer,
            [
                ("adamw", 3e-4),
                ("adamw8bit", 3e-4),
                ("lion", 6e-5),
                ("adafactor", 8e-4),
                ("sgd", 2e-2),
            ],
        ) * self.machine.rate
            * (self.batch / 8.0).sqrt()
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
            + 0.004 * self.quantized_twice()
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

/// The published problem: minus throughput, memory and loss, each scaled; `None` where it runs out of memory.
pub(crate) fn lora(params: &Params) -> Option<Vec<f64>> {
    evaluate(&Lora::new(params))
}

/// Scores a LoRA on a smaller machine, with a smaller model that wants lower learning rates.
pub(crate) fn smaller(params: &Params) -> Option<Vec<f64>> {
    evaluate(&Lora::on(params, SMALLER))
}

fn evaluate(lora: &Lora<'_>) -> Option<Vec<f64>> {
    let (memory, capacity) = (lora.memory_gib(), lora.machine.capacity_gib);
    (memory <= capacity).then(|| vec![-lora.throughput() / 10000.0, memory / capacity, lora.loss(STEPS) - 1.8])
}
