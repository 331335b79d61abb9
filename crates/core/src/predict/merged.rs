//! Traces what a training makes of its weights before each pass where it takes a later quantization into account.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Product, Right, Work};
use super::trace::Trace;
use super::tracer::StepTracer;
use crate::plan::products::Call;
use crate::plan::{Form, GroupPlan, LayerPlan, MERGED_ROWS, ProjectionPlan, merged_bytes};

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
        for group in layers.flat_map(LayerPlan::groups) {
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
        // Some rows at a time.
        for start in (0..outputs).step_by(MERGED_ROWS) {
            let call = Call::dense(Form::Nn, [MERGED_ROWS.min(outputs - start), inputs, rank], 4, false);
            trace.run(Work::Product(Product::new(&call, Module::Adapters, Right::Adapter)));
        }
        // Read and rounded.
        for _ in 0..2 {
            trace.run(Work::Pass {
                pass: Pass::Copy,
                elements: (outputs * inputs) as f64,
            });
        }
    }
}
