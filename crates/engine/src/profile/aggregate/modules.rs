//! Modules by path, each with the time, FLOPs and bytes of all that runs inside it.

use std::collections::HashMap;

use super::phases::phase_of;
use crate::profile::ModuleTime;
use crate::span::{Module, Range, SpanTree, StepPhase};

#[derive(Debug, Default)]
struct Sum {
    calls: u64,
    seconds: f64,
    forward_seconds: f64,
    flops: u64,
    bytes: u64,
    adapter_seconds: f64,
}

/// Sums by path, in the order of first sight.
#[derive(Debug, Default)]
pub(super) struct ModuleSums {
    places: HashMap<Vec<Range>, usize>,
    sums: Vec<(Vec<Range>, Sum)>,
}

impl ModuleSums {
    pub(super) fn push(&mut self, tree: &SpanTree) {
        for (index, span) in tree.spans.iter().enumerate() {
            let phase = phase_of(tree, index);
            match span.range {
                Range::Phase(_) => {}
                Range::Layer(_) | Range::Module(_) => {
                    let sum = self.sum(path(tree, index));
                    sum.calls += 1;
                    sum.seconds += span.seconds();
                    if phase == StepPhase::Forward {
                        sum.forward_seconds += span.seconds();
                    }
                }
                Range::Op(_) => {
                    let whole = path(tree, index);
                    let in_adapter = whole.contains(&Range::Module(Module::Adapters));
                    for length in 1..=whole.len() {
                        let sum = self.sum(whole[..length].to_vec());
                        sum.flops += span.work.flops;
                        sum.bytes += span.work.bytes;
                        sum.adapter_seconds += super::ops::adapter_seconds(span, in_adapter);
                    }
                }
            }
        }
    }

    pub(super) fn table(&self, steps: u64) -> Vec<ModuleTime> {
        let steps = steps.max(1) as f64;
        let row = |(path, sum): &(Vec<Range>, Sum)| ModuleTime {
            path: path.iter().map(Range::to_string).collect(),
            calls: sum.calls as f64 / steps,
            seconds: sum.seconds / steps,
            forward_seconds: sum.forward_seconds / steps,
            flops: sum.flops as f64 / steps,
            bytes: sum.bytes as f64 / steps,
            adapter_seconds: sum.adapter_seconds / steps,
        };
        self.sums.iter().map(row).collect()
    }

    fn sum(&mut self, path: Vec<Range>) -> &mut Sum {
        let place = match self.places.get(&path) {
            Some(place) => *place,
            None => {
                self.places.insert(path.clone(), self.sums.len());
                self.sums.push((path, Sum::default()));
                self.sums.len() - 1
            }
        };
        &mut self.sums[place].1
    }
}

/// The layer and the modules around a span, itself included, from the outside in.
fn path(tree: &SpanTree, index: usize) -> Vec<Range> {
    let ranges = tree.around(index).map(|span| span.range);
    let mut path: Vec<Range> = ranges
        .filter(|range| matches!(range, Range::Layer(_) | Range::Module(_)))
        .collect();
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::{op, span, tree};

    #[test]
    fn a_module_holds_what_runs_inside_it() {
        let step = tree(vec![
            span(Range::Phase(StepPhase::Step), None, 0, 100),
            span(Range::Phase(StepPhase::Forward), Some(0), 0, 50),
            span(Range::Layer(0), Some(1), 0, 40),
            span(Range::Module(Module::Mlp), Some(2), 10, 40),
            op("matmul_nt", Some(3), (10, 30), (100, 25)),
            span(Range::Module(Module::Adapters), Some(3), 30, 35),
            op("matmul_nt", Some(5), (30, 35), (8, 8)),
        ]);
        let mut sums = ModuleSums::default();
        sums.push(&step);
        let table = sums.table(1);
        let find = |path: &[&str]| table.iter().find(|row| row.path == path).unwrap();
        let mlp = find(&["layer 0", "mlp"]);
        assert_eq!((mlp.flops, mlp.calls), (108.0, 1.0));
        assert!((mlp.seconds - 30e-9).abs() < 1e-15 && mlp.seconds == mlp.forward_seconds);
        // A quarter of the joint product's 20 ns, and the adapter's own 5 ns.
        assert!((find(&["layer 0"]).adapter_seconds - 10e-9).abs() < 1e-15);
        assert_eq!(find(&["layer 0", "mlp", "adapter"]).flops, 8.0);
    }
}
