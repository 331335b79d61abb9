//! FLOPs of a step: what the model needs, and what the hardware computes.
//!
//! A product of (R, K) with (K, C) counts 2 R K C. Attention counts the visible pairs only: 2 pairs (d + dv) for each head
//! forward, 2 pairs (3 d + 2 dv) backward (one product is made again). A delta rule counts its products with
//! states. Passes over memory are not counted.

use super::op::{Module, Op, Stage, Work, delta_rule_flops};
use super::prediction::Setting;
use super::step_ops::StepOps;
use super::stream::StreamShape;

/// FLOPs of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flops {
    /// Forward and backward, adapters included; no recomputation.
    pub model: f64,
    /// [`Flops::model`] and what is computed again.
    pub hardware: f64,
    pub forward: f64,
    pub backward: f64,
    pub recompute: f64,
    /// The adapters' part of forward, backward and recomputation.
    pub adapters: f64,
    /// FLOPs by module, recomputation included.
    pub modules: Vec<(Module, f64)>,
}

impl Flops {
    /// FLOPs of a step whose micro-batches and whose update have these ops.
    pub(super) fn of_step(micro_batch: &StepOps, update: &[Op], setting: &Setting<'_>) -> Self {
        let (mut flops, stream) = (Self::default(), &setting.workload.mean);
        flops.count(&micro_batch.ops, setting.recipe.batch.micro_batches() as f64, stream);
        flops.count(update, 1.0, stream);
        flops
    }

    /// Counts `ops`, each `times` times.
    fn count(&mut self, ops: &[Op], times: f64, stream: &StreamShape) {
        for op in ops {
            let (times, of_one) = (times * op.times, op.work.flops(stream));
            if let Some(module) = of_one.module {
                self.add(op.stage, module, times * of_one.own);
                self.add(op.stage, Module::Adapters, times * of_one.adapter);
            }
        }
        self.model = self.forward + self.backward;
        self.hardware = self.model + self.recompute;
    }

    fn add(&mut self, stage: Stage, module: Module, flops: f64) {
        if self.modules.is_empty() {
            self.modules = Module::all().map(|module| (module, 0.0)).collect();
        }
        match stage {
            Stage::Forward => self.forward += flops,
            Stage::Backward | Stage::Optimizer => self.backward += flops,
            Stage::Recompute => self.recompute += flops,
        }
        if module == Module::Adapters {
            self.adapters += flops;
        }
        if let Some((_, sum)) = self.modules.iter_mut().find(|(known, _)| *known == module) {
            *sum += flops;
        }
    }
}

/// FLOPs of an op that runs once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkFlops {
    /// Module that they belong to; `None` of an op without FLOPs.
    pub module: Option<Module>,
    pub own: f64,
    /// FLOPs of the adapter's part of a sum.
    pub adapter: f64,
}

impl WorkFlops {
    pub(super) fn total(self) -> f64 {
        self.own + self.adapter
    }
}

impl Work {
    /// FLOPs of the op on a stream.
    pub(super) fn flops(&self, stream: &StreamShape) -> WorkFlops {
        let (module, own, adapter) = match self {
            Self::Product(product) => (Some(product.module), product.flops(), product.adapter_flops()),
            Self::Attention {
                heads,
                window,
                chunk,
                backward,
            } => {
                let documents = stream.in_chunks(*chunk).into_iter();
                let pairs: f64 = documents
                    .map(|documents| {
                        let length = documents.tokens as f64;
                        documents.count * length * mean_keys(length, *window)
                    })
                    .sum();
                (Some(Module::Attention), pairs * heads.pair_flops(*backward), 0.0)
            }
            Self::DeltaRule { state, backward } => {
                let flops = delta_rule_flops(*backward) * stream.tokens() * *state as f64;
                (Some(Module::Attention), flops, 0.0)
            }
            Self::Pass { .. } => (None, 0.0, 0.0),
        };
        WorkFlops { module, own, adapter }
    }
}

/// Keys that a query of a document of `length` tokens sees on average.
pub(super) fn mean_keys(length: f64, window: Option<usize>) -> f64 {
    match window.map(|window| window as f64).filter(|window| *window < length) {
        Some(window) => window - window * window / (2.0 * length),
        None => length / 2.0,
    }
}
