//! Ceilings of one machine: the times of the engine's ops, measured once and read between the measured sizes.
//!
//! | grid | coordinates | value |
//! |---|---|---|
//! | `products` nt, nn | rows, columns, depth | s, right operand as the precision stores it |
//! | `byte_products` nt, nn | rows, columns, depth | s, the same with activations in 8 bits |
//! | `sparse_products` nt, nn | rows, columns, depth | s, the same with two of four values left out |
//! | `adapter_nt`, `adapter_nn` | rows, rank, width | s, F32 right operand |
//! | `gradient_a`, `gradient_b` | rank, width, tokens | s |
//! | passes | elements | s |
//! | attention | document length, head width | s for one token and query head |
//!
//! `whole_steps` has a factor for each precision: what steps take over the sum of their ops.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::grid::Grid;
use super::op::Pass;
use super::stack::HOST;
use super::{DataSheet, Host};
use crate::recipe::Precision;

/// The measured ceilings of one machine and build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub host: Host,
    /// Bytes a second that a pass over large memory reads and writes.
    pub memory_bytes_per_s: f64,
    /// Seconds to wake the threads for an op that does nothing.
    pub wake_s: f64,
    /// Bytes a second from host memory to the device's; absent where the device is the host.
    pub host_to_device_bytes_per_s: Option<f64>,
    /// Products with base weights, by their storage.
    pub products: BTreeMap<Precision, WeightProducts>,
    /// Products with base weights and activations in 8 bits, by the weights' storage.
    #[serde(default)]
    pub byte_products: BTreeMap<Precision, WeightProducts>,
    /// Products with base weights of which two of each four values are left out, by their storage.
    #[serde(default)]
    pub sparse_products: BTreeMap<Precision, WeightProducts>,
    /// Everything else, by the precision that stands for the compute dtype.
    pub ops: BTreeMap<Precision, OpTimes>,
    /// The optimizer's passes, which are F32 always.
    pub updates: BTreeMap<Pass, Grid>,
    /// Time of whole steps over the sum of their ops.
    #[serde(default)]
    pub whole_steps: BTreeMap<Precision, f64>,
}

/// Products with a base weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightProducts {
    pub nt: Grid,
    pub nn: Grid,
}

/// Ops in one compute dtype.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpTimes {
    pub adapter_nt: Grid,
    pub adapter_nn: Grid,
    pub gradient_a: Grid,
    pub gradient_b: Grid,
    pub passes: BTreeMap<Pass, Grid>,
    pub attention_forward: Grid,
    pub attention_backward: Grid,
}

/// A ceiling as people read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headline {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
}

/// Shapes that stand for a class of products: name, rows, columns, depth.
const CLASSES: [(&str, [f64; 3]); 3] = [
    ("large", [512.0, 1024.0, 1024.0]),
    ("medium", [512.0, 256.0, 256.0]),
    ("small", [32.0, 64.0, 64.0]),
];

/// The adapter's own class.
const SKINNY: [f64; 3] = [512.0, 16.0, 1024.0];

impl Ceilings {
    /// Whether settings of this precision can be predicted: not by what an earlier version measured, where an op is new.
    pub fn covers(&self, precision: Precision) -> bool {
        let Some(ops) = self.ops.get(&precision.compute()) else {
            return false;
        };
        let has = |pass: &Pass| ops.passes.contains_key(pass) || self.updates.contains_key(pass);
        self.products.contains_key(&precision)
            && match precision.is_quantized() {
                true => self.byte_products.contains_key(&precision),
                false => self.sparse_products.contains_key(&precision),
            }
            && self.whole_steps.contains_key(&precision)
            && Pass::all().all(|pass| has(&pass))
    }

    /// Data sheet with what a processor with `memory_bytes` reaches: large products and long passes, as measured.
    pub fn as_sheet(&self, memory_bytes: u64) -> DataSheet {
        let rate = |precision: Precision| {
            let [rows, columns, depth] = CLASSES[0].1;
            let seconds = self.products.get(&precision)?.nt.at(&[rows, columns, depth])?;
            Some(2.0 * rows * columns * depth / seconds)
        };
        let f32 = rate(Precision::Fp32).unwrap_or(f64::MIN_POSITIVE);
        DataSheet {
            name: HOST,
            memory_bytes,
            bandwidth: self.memory_bytes_per_s,
            matrix: rate(Precision::Bf16).unwrap_or(f32),
            f32,
            has_bf16: true,
            byte_rate: 2.0,
            // Its link is its memory.
            pcie_generation: 4,
            nvlink: None,
            source: "measured on this machine",
        }
    }

    /// The ceilings that people compare machines by.
    pub fn headlines(&self) -> Vec<Headline> {
        let mut headlines = Vec::new();
        let mut push = |name: String, value: f64, unit| headlines.push(Headline { name, value, unit });
        let others = [
            (&self.byte_products, "int8 activations"),
            (&self.sparse_products, "2:4 sparse"),
        ];
        for (all, words) in others {
            for (precision, products) in all {
                for (class, shape) in CLASSES {
                    if let Some(seconds) = products.nt.at(&shape) {
                        let flops = 2.0 * shape.iter().product::<f64>();
                        let name = format!("gemm {}, {words}, {class}", precision.name());
                        push(name, flops / seconds / 1e9, "GFLOP/s");
                    }
                }
            }
        }
        for (precision, products) in &self.products {
            let storage = precision.name();
            for (class, shape) in CLASSES {
                if let Some(seconds) = products.nt.at(&shape) {
                    let flops = 2.0 * shape.iter().product::<f64>();
                    push(format!("gemm {storage} {class}"), flops / seconds / 1e9, "GFLOP/s");
                }
            }
            let skinny = self
                .ops
                .get(&precision.compute())
                .filter(|_| precision.compute() == *precision);
            if let Some(seconds) = skinny.and_then(|ops| ops.adapter_nt.at(&SKINNY)) {
                let flops = 2.0 * SKINNY.iter().product::<f64>();
                push(format!("gemm {storage} skinny"), flops / seconds / 1e9, "GFLOP/s");
            }
        }
        for (precision, factor) in &self.whole_steps {
            push(format!("whole step {}", precision.name()), *factor, "x its ops");
        }
        push("memory".to_owned(), self.memory_bytes_per_s / 1e9, "GB/s");
        push("thread wake-up".to_owned(), self.wake_s * 1e6, "us");
        if let Some(rate) = self.host_to_device_bytes_per_s {
            push("host to device".to_owned(), rate / 1e9, "GB/s");
        }
        headlines
    }
}
