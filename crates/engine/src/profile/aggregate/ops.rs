//! Ops by name, phase, shape and storage.

use std::collections::HashMap;

use super::phases::phase_of;
use crate::profile::OpTime;
use crate::profile::ceiling::Ceiling;
use crate::span::{Module, Range, Shape, SpanRecord, SpanTree, StepPhase};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: &'static str,
    phase: StepPhase,
    shape: Shape,
    storage: &'static str,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    seconds: f64,
    flops: u64,
    recomputed_flops: u64,
    adapter_flops: u64,
    adapter_seconds: f64,
    bytes: u64,
}

/// Sums by op.
#[derive(Debug, Default)]
pub(super) struct OpSums(HashMap<Key, Sum>);

impl OpSums {
    pub(super) fn push(&mut self, tree: &SpanTree) {
        for (index, span) in tree.spans.iter().enumerate() {
            let Range::Op(name) = span.range else { continue };
            let key = Key {
                name,
                phase: phase_of(tree, index),
                shape: span.work.shape.of_any_tokens(),
                storage: span.work.storage,
            };
            let in_adapter = tree
                .around(index)
                .any(|around| around.range == Range::Module(Module::Adapters));
            let recomputed = match key.phase {
                StepPhase::Recompute => span.work.flops,
                _ => span.work.recomputed_flops,
            };
            let sum = self.0.entry(key).or_default();
            sum.calls += 1;
            sum.seconds += span.seconds();
            sum.flops += span.work.flops;
            sum.recomputed_flops += recomputed;
            sum.adapter_flops += if in_adapter {
                span.work.flops
            } else {
                span.work.adapter_flops
            };
            sum.adapter_seconds += adapter_seconds(span, in_adapter);
            sum.bytes += span.work.bytes;
        }
    }

    pub(super) fn table(&self, steps: u64, step_seconds: f64, ceiling: Option<&Ceiling>) -> Vec<OpTime> {
        let steps = steps.max(1) as f64;
        let row = |(key, sum): (&Key, &Sum)| OpTime {
            name: key.name.to_owned(),
            phase: key.phase.name().to_owned(),
            shape: key.shape.to_string(),
            storage: key.storage.to_owned(),
            calls: sum.calls as f64 / steps,
            seconds: sum.seconds / steps,
            share: sum.seconds / step_seconds.max(f64::MIN_POSITIVE),
            flops: sum.flops as f64 / steps,
            recomputed_flops: sum.recomputed_flops as f64 / steps,
            adapter_flops: sum.adapter_flops as f64 / steps,
            bytes: sum.bytes as f64 / steps,
            roofline_share: ceiling.map(|ceiling| {
                let least = ceiling.least_seconds(sum.flops as f64, sum.bytes as f64);
                least / sum.seconds.max(f64::MIN_POSITIVE)
            }),
        };
        let mut rows: Vec<OpTime> = self.0.iter().map(row).collect();
        rows.sort_by(|a, b| {
            let names = |op: &OpTime| (op.name.clone(), op.phase.clone(), op.shape.clone(), op.storage.clone());
            b.seconds.total_cmp(&a.seconds).then_with(|| names(a).cmp(&names(b)))
        });
        rows
    }

    /// FLOPs of all steps.
    pub(super) fn flops(&self) -> f64 {
        self.0.values().map(|sum| sum.flops as f64).sum()
    }

    /// FLOPs that had been computed before.
    pub(super) fn recomputed_flops(&self) -> f64 {
        self.0.values().map(|sum| sum.recomputed_flops as f64).sum()
    }

    /// Seconds and FLOPs of the adapters.
    pub(super) fn adapter(&self) -> (f64, f64) {
        let sums = self.0.values();
        sums.fold((0.0, 0.0), |(seconds, flops), sum| {
            (seconds + sum.adapter_seconds, flops + sum.adapter_flops as f64)
        })
    }
}

/// Seconds of an op that are an adapter's: all of one that runs for it alone, and of a joint product its part of the
/// FLOPs.
pub(super) fn adapter_seconds(span: &SpanRecord, in_adapter: bool) -> f64 {
    match (in_adapter, span.work.flops) {
        (true, _) => span.seconds(),
        (false, 0) => 0.0,
        (false, flops) => span.seconds() * span.work.adapter_flops as f64 / flops as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::{op, span, tree};

    fn step() -> SpanTree {
        tree(vec![
            span(Range::Phase(StepPhase::Step), None, 0, 100),
            span(Range::Phase(StepPhase::Forward), Some(0), 0, 50),
            op("matmul_nt", Some(1), (0, 20), (100, 25)),
            op("matmul_nt", Some(1), (20, 40), (100, 25)),
            span(Range::Phase(StepPhase::Recompute), Some(0), 50, 70),
            op("matmul_nt", Some(4), (50, 70), (100, 0)),
        ])
    }

    #[test]
    fn calls_of_one_shape_and_phase_are_one_row() {
        let mut sums = OpSums::default();
        sums.push(&step());
        sums.push(&step());
        let ceiling = Ceiling {
            flops_per_s: 10e9,
            bytes_per_s: 1e12,
            from: crate::profile::CeilingSource::Measured,
        };
        let table = sums.table(2, 200e-9, Some(&ceiling));
        assert_eq!(table.len(), 2);
        let forward = &table[0];
        assert_eq!(
            (forward.phase.as_str(), forward.calls, forward.flops),
            ("forward", 2.0, 200.0)
        );
        assert!((forward.share - 0.4).abs() < 1e-12);
        assert!((forward.gflop_per_s() - 5.0).abs() < 1e-9);
        assert!((forward.roofline_share.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn recomputed_flops_are_told_apart() {
        let mut sums = OpSums::default();
        sums.push(&step());
        assert_eq!((sums.flops(), sums.recomputed_flops()), (300.0, 100.0));
        let (seconds, flops) = sums.adapter();
        assert!((seconds - 10e-9).abs() < 1e-15 && flops == 50.0);
    }
}
