//! Phases of the steps: medians with their confidence intervals, and what no phase holds.

use crate::profile::PhaseTime;
use crate::profile::steady::Median;
use crate::span::{Range, SpanTree, StepPhase};

/// The phases in the order of a step; `Recompute` lies within `Backward`.
const ORDER: [StepPhase; 7] = [
    StepPhase::Data,
    StepPhase::HostToDevice,
    StepPhase::Forward,
    StepPhase::Backward,
    StepPhase::Recompute,
    StepPhase::Optimizer,
    StepPhase::Logging,
];

/// Seconds of one step.
#[derive(Debug, Default)]
struct StepSeconds {
    total: f64,
    /// Seconds of the phases, by the place in [`ORDER`].
    phases: [f64; ORDER.len()],
    in_ops: [f64; ORDER.len()],
}

/// Seconds of each phase in each step.
#[derive(Debug, Default)]
pub(super) struct PhaseSums(Vec<StepSeconds>);

impl PhaseSums {
    pub(super) fn push(&mut self, tree: &SpanTree) {
        let mut step = StepSeconds {
            total: tree.root().seconds(),
            ..StepSeconds::default()
        };
        for (index, span) in tree.spans.iter().enumerate() {
            match span.range {
                Range::Phase(phase) => {
                    if let Some(place) = place(phase) {
                        step.phases[place] += span.seconds();
                    }
                }
                Range::Op(_) => {
                    for around in tree.around(index).skip(1) {
                        if let Range::Phase(phase) = around.range
                            && let Some(place) = place(phase)
                        {
                            step.in_ops[place] += span.seconds();
                        }
                    }
                }
                Range::Layer(_) | Range::Module(_) => {}
            }
        }
        self.0.push(step);
    }

    pub(super) fn table(&self) -> Vec<PhaseTime> {
        let total: f64 = self.0.iter().map(|step| step.total).sum();
        let row = |name: &str, nested: bool, seconds: &dyn Fn(&StepSeconds) -> f64, in_ops: f64| {
            let each: Vec<f64> = self.0.iter().map(seconds).collect();
            let median = Median::of(&each).unwrap_or_default();
            PhaseTime {
                phase: name.to_owned(),
                seconds: median.value,
                interval: median.interval,
                share: each.iter().sum::<f64>() / total.max(f64::MIN_POSITIVE),
                op_seconds: in_ops / self.0.len().max(1) as f64,
                nested,
            }
        };
        let mut rows = Vec::with_capacity(ORDER.len() + 1);
        for (place, phase) in ORDER.into_iter().enumerate() {
            let nested = phase == StepPhase::Recompute;
            let in_ops = self.0.iter().map(|step| step.in_ops[place]).sum();
            let row = row(phase.name(), nested, &|step| step.phases[place], in_ops);
            // Without activation checkpointing there is nothing to recompute.
            if row.share > 0.0 || !nested {
                rows.push(row);
            }
        }
        rows.push(row("idle", false, &idle, 0.0));
        rows
    }
}

/// Seconds of a step that no phase holds.
fn idle(step: &StepSeconds) -> f64 {
    let outer = ORDER.iter().zip(&step.phases);
    let held: f64 = outer
        .filter(|(phase, _)| **phase != StepPhase::Recompute)
        .map(|(_, seconds)| seconds)
        .sum();
    (step.total - held).max(0.0)
}

fn place(phase: StepPhase) -> Option<usize> {
    ORDER.iter().position(|other| *other == phase)
}

/// The phase that a span runs in: the innermost around it.
pub(super) fn phase_of(tree: &SpanTree, index: usize) -> StepPhase {
    let phases = tree.around(index).filter_map(|span| match span.range {
        Range::Phase(phase) => Some(phase),
        _ => None,
    });
    phases.into_iter().next().unwrap_or(StepPhase::Step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::{span, tree};

    #[test]
    fn what_no_phase_holds_is_idle_and_recomputation_is_not_counted_twice() {
        let step = tree(vec![
            span(Range::Phase(StepPhase::Step), None, 0, 100),
            span(Range::Phase(StepPhase::Forward), Some(0), 5, 35),
            span(Range::Op("matmul_nt"), Some(1), 10, 30),
            span(Range::Phase(StepPhase::Backward), Some(0), 35, 85),
            span(Range::Phase(StepPhase::Recompute), Some(3), 40, 60),
            span(Range::Op("matmul_nt"), Some(4), 41, 51),
        ]);
        let mut sums = PhaseSums::default();
        sums.push(&step);
        let table = sums.table();
        let find = |name: &str| table.iter().find(|row| row.phase == name).unwrap();
        let close = |value: f64, nanoseconds: f64| (value - nanoseconds * 1e-9).abs() < 1e-15;
        assert!(close(find("forward").seconds, 30.0) && close(find("forward").op_seconds, 20.0));
        assert!(close(find("backward").seconds, 50.0) && close(find("backward").op_seconds, 10.0));
        assert!(close(find("recompute").seconds, 20.0) && find("recompute").nested);
        assert!(close(find("idle").seconds, 20.0));
        let outer: f64 = table.iter().filter(|row| !row.nested).map(|row| row.share).sum();
        assert!((outer - 1.0).abs() < 1e-12);
    }
}
