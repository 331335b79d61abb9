//! Traces what a training makes of its weights before each pass where it takes a later quantization into account.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Right, Work};
use super::trace::Trace;
use super::tracer::StepTracer;
use crate::plan::{Form, GroupPlan, MERGED_ROWS, ProjectionPlan, aware_groups, merged_bytes};

impl StepTracer<'_> {
    /// Whether merged weights are multiplied, rounded to a quantized form.
    pub(super) fn is_aware(&self) -> bool {
        !self.plan.quantization_aware.is_none()
    }

    /// The codes of all weights with adapters, some rows of one at a time.
    pub(super) fn merged_weights(&self, trace: &mut Trace) {
        if !self.is_aware() {
            return;
        }
        let layers = self.plan.layers.iter().map(|kind| &self.plan.kinds[*kind]);
        for group in layers.flat_map(aware_groups) {
            let projections = group.projections.iter();
            for projection in projections.filter(|projection| projection.adapter.is_some()) {
                self.merged_weight(trace, group, projection);
            }
        }
    }

    fn merged_weight(&self, trace: &mut Trace, group: &GroupPlan, projection: &ProjectionPlan) {
        let (outputs, inputs, rank) = (projection.outputs(), group.inputs, group.rank_of(projection));
        let rows = outputs.min(MERGED_ROWS);
        let codes = merged_bytes([rows, inputs], self.plan.quantization_aware);
        // The sum, what is read of it, and the codes that take the place of the old ones.
        let sums = (2 * 4 * rows * inputs) as u64;
        trace.spike(MemoryCategory::Scratch, sums + codes.values + codes.constants);
        trace.run(Work::Product(super::op::Product {
            module: Module::Adapters,
            right: Right::Adapter,
            in_bytes: false,
            form: Form::Nn,
            rows: outputs as f64,
            columns: inputs as f64,
            depth: rank as f64,
            adapter_depth: 0.0,
            launches: 1.0,
        }));
        // Read and rounded.
        for _ in 0..2 {
            trace.run(Work::Pass {
                pass: Pass::Copy,
                elements: (outputs * inputs) as f64,
            });
        }
    }
}
