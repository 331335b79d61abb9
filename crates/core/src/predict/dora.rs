//! Walks what DoRA adds to a step, as `train::model::dora` and its projections do it.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Right};
use super::trace::Trace;
use super::tracer::StepTracer;
use crate::plan::products::Call;
use crate::plan::{Form, GroupPlan, LayerPlan, ProjectionPlan, Vectors};

impl StepTracer<'_> {
    /// DoRA's output, in the scratch: before its gain, and what it becomes there or as part of a sum.
    pub(super) fn turned(&self, trace: &mut Trace, (group, module): (&GroupPlan, Module), projection: &ProjectionPlan) {
        let (width, rank, y) = (
            projection.outputs(),
            group.rank_of(projection),
            self.act(projection.outputs()),
        );
        if !self.plan.dropout() {
            trace.hold(MemoryCategory::Scratch, y);
            self.adapted(trace, (group, module), projection);
            self.pass(trace, Module::Adapters, Pass::Bias, width);
            return;
        }
        let dropped = self.dropped(trace, group.inputs);
        let columns = [width, group.inputs, 0];
        trace.hold(MemoryCategory::Scratch, y);
        self.linear(trace, Module::Adapters, Right::Weight, Form::Nt, columns);
        trace.free(MemoryCategory::Scratch, dropped);
        trace.hold(MemoryCategory::Scratch, y);
        self.linear(trace, Module::Adapters, Right::Adapter, Form::Nt, [width, rank, 0]);
        (0..2).for_each(|_| self.pass(trace, Module::Adapters, Pass::Bias, width));
        trace.spike(MemoryCategory::Scratch, y);
        self.pass(trace, Module::Adapters, Pass::Add, width);
        // Both are gone when the sum is there, onto which the last product adds.
        self.linear(trace, module, Right::Weight, Form::Nt, columns);
        trace.free(MemoryCategory::Scratch, y);
    }

    /// Bytes of the sums over the rows that the gain's backward pass adds up.
    pub(super) fn gain_sums(&self, width: usize) -> u64 {
        let rows = if self.host.vectors == Vectors::None { 128 } else { 32 };
        (4 * self.tokens.div_ceil(rows) * width) as u64
    }

    /// What DoRA needs of the parameters, before each pass: row norms of W + s B A.
    pub(super) fn dora_factors(&self, trace: &mut Trace) {
        let layers = self.plan.layers.iter().map(|kind| &self.plan.kinds[*kind]);
        for group in layers.flat_map(LayerPlan::groups) {
            let projections = group.projections.iter();
            for projection in projections.filter(|projection| projection.adapter.is_some()) {
                self.dora_factors_of(trace, group, projection);
            }
        }
    }

    /// Products with r columns, whatever the tokens.
    fn dora_factors_of(&self, trace: &mut Trace, group: &GroupPlan, projection: &ProjectionPlan) {
        let rank = group.rank_of(projection);
        trace.spike(MemoryCategory::Scratch, (4 * 4 * rank * projection.outputs()) as u64);
        let (outputs, inputs) = (projection.outputs(), group.inputs);
        let mut product = |right, form, shape| {
            let call = Call {
                left_bytes: 4,
                f32_result: true,
                // Norms are exact.
                in_bytes: false,
                ..self.call(right, form, shape)
            };
            self.product(trace, Module::Adapters, right, call);
        };
        product(Right::Weight, Form::Nt, [rank, outputs, inputs]);
        product(Right::Adapter, Form::Nt, [rank, rank, inputs]);
        product(Right::Adapter, Form::Nn, [outputs, rank, rank]);
    }
}
