//! All sums over the measured steps, fed one step's tree at a time.

use super::modules::ModuleSums;
use super::ops::OpSums;
use super::phases::PhaseSums;
use crate::profile::ceiling::Ceiling;
use crate::profile::{AdapterCost, Arithmetic, ModuleTime, OpTime, PhaseTime};
use crate::span::{Module, Range, SpanTree};

/// Steps without spans, beside those that are summed up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FreeSteps {
    /// Tokens of one over those of a step with spans.
    pub tokens_ratio: f64,
    /// Seconds of one.
    pub step_s: f64,
}

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

    /// FLOPs of a step against the peak; of a free one where the steps with spans were others.
    pub(crate) fn arithmetic(&self, ceiling: Option<&Ceiling>, free: Option<FreeSteps>) -> Arithmetic {
        let steps = self.steps.max(1) as f64;
        let free = free.unwrap_or(FreeSteps {
            tokens_ratio: 1.0,
            step_s: self.step_seconds / steps,
        });
        let hardware = free.tokens_ratio * self.ops.flops() / steps;
        let model = hardware - free.tokens_ratio * self.ops.recomputed_flops() / steps;
        let peak_flops_per_s = ceiling.map(|ceiling| ceiling.flops_per_s);
        let share = |flops: f64| peak_flops_per_s.map(|peak| flops / free.step_s / peak);
        Arithmetic {
            model_flops: Some(model),
            hardware_flops: hardware,
            peak_flops_per_s,
            peak_from: ceiling.map(|ceiling| ceiling.from),
            mfu: share(model),
            hfu: share(hardware),
        }
    }
}

/// Seconds in which the adapters' own ops ran.
fn adapter_alone(tree: &SpanTree) -> f64 {
    let is_adapter = |range: Range| range == Range::Module(Module::Adapters);
    let spans = tree.spans.iter().enumerate();
    spans
        .filter(|(index, span)| {
            is_adapter(span.range) && !tree.around(*index).skip(1).any(|around| is_adapter(around.range))
        })
        .map(|(_, span)| span.seconds())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::CeilingSource;
    use crate::profile::fixtures::{op, span, tree};
    use crate::span::StepPhase;

    #[test]
    fn the_peak_is_held_against_the_time_of_free_steps() {
        let mut totals = StepTotals::default();
        totals.push(&tree(vec![
            span(Range::Phase(StepPhase::Step), None, 0, 1_000),
            op("matmul_nt", Some(0), (0, 500), (600, 0)),
        ]));
        let ceiling = Ceiling {
            flops_per_s: 1e9,
            bytes_per_s: 1e9,
            from: CeilingSource::DataSheet,
        };
        let spanned = totals.arithmetic(Some(&ceiling), None);
        assert!((spanned.mfu.unwrap() - 0.6).abs() < 1e-12);
        assert_eq!(spanned.peak_from, Some(CeilingSource::DataSheet));
        // Half the tokens in a quarter of the time.
        let free = FreeSteps {
            tokens_ratio: 0.5,
            step_s: 250e-9,
        };
        let free = totals.arithmetic(Some(&ceiling), Some(free));
        assert_eq!(free.hardware_flops, 300.0);
        assert!((free.mfu.unwrap() - 1.2).abs() < 1e-12);
        assert_eq!(totals.arithmetic(None, None).mfu, None);
    }
}
