//! All sums over the measured steps, fed one step's tree at a time.

use super::modules::ModuleSums;
use super::ops::OpSums;
use super::phases::PhaseSums;
use crate::profile::ceiling::Ceiling;
use crate::profile::{AdapterCost, Arithmetic, ModuleTime, OpTime, PhaseTime};
use crate::span::{Module, Range, SpanTree, StepPhase};

/// Sums over steps.
#[derive(Debug, Default)]
pub(crate) struct StepTotals {
    steps: u64,
    step_seconds: f64,
    phases: PhaseSums,
    modules: ModuleSums,
    ops: OpSums,
    adapter_alone_seconds: f64,
}

impl StepTotals {
    /// Adds one step: a tree whose root is the step.
    pub(crate) fn push(&mut self, tree: &SpanTree) {
        self.steps += 1;
        self.step_seconds += tree.root().seconds();
        self.phases.push(tree);
        self.modules.push(tree);
        self.ops.push(tree);
        self.adapter_alone_seconds += adapter_alone(tree);
    }

    /// Phases in their order, with medians over the steps.
    pub(crate) fn phases(&self) -> Vec<PhaseTime> {
        self.phases.table()
    }

    /// Modules in the order in which they run, as means of a step.
    pub(crate) fn modules(&self) -> Vec<ModuleTime> {
        self.modules.table(self.steps)
    }

    /// Ops, the longest first, as means of a step.
    pub(crate) fn ops(&self, ceiling: Option<&Ceiling>) -> Vec<OpTime> {
        self.ops.table(self.steps, self.step_seconds, ceiling)
    }

    /// The adapters' part.
    pub(crate) fn adapter(&self) -> AdapterCost {
        let steps = self.steps.max(1) as f64;
        let (seconds, flops) = self.ops.adapter();
        let all = self.ops.flops();
        AdapterCost {
            seconds: seconds / steps,
            alone_seconds: self.adapter_alone_seconds / steps,
            share: seconds / self.step_seconds.max(f64::MIN_POSITIVE),
            flops: flops / steps,
            flops_share: if all > 0.0 { flops / all } else { 0.0 },
        }
    }

    /// FLOPs of a step against the peak.
    pub(crate) fn arithmetic(&self, peak_flops_per_s: Option<f64>) -> Arithmetic {
        let steps = self.steps.max(1) as f64;
        let hardware = self.ops.flops() / steps;
        let model = hardware - self.ops.recomputed_flops() / steps;
        let share = |flops: f64| peak_flops_per_s.map(|peak| flops * steps / self.step_seconds / peak);
        Arithmetic {
            model_flops: model,
            hardware_flops: hardware,
            peak_flops_per_s,
            mfu: share(model),
            hfu: share(hardware),
        }
    }
}

/// Seconds in which the adapters' own ops ran.
fn adapter_alone(tree: &SpanTree) -> f64 {
    let is_adapter = |range: Range| range == Range::Module(Module::Adapter);
    let spans = tree.spans.iter().enumerate();
    spans
        .filter(|(index, span)| {
            is_adapter(span.range) && !tree.around(*index).skip(1).any(|around| is_adapter(around.range))
        })
        .map(|(_, span)| span.seconds())
        .sum()
}

/// The phase that a span runs in: the innermost around it.
pub(super) fn phase_of(tree: &SpanTree, index: usize) -> StepPhase {
    let phases = tree.around(index).filter_map(|span| match span.range {
        Range::Phase(phase) => Some(phase),
        _ => None,
    });
    phases.into_iter().next().unwrap_or(StepPhase::Step)
}
