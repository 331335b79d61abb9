//! Walks what DoRA adds to a step, as `train::model::dora` and its projections do it.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Right};
use super::trace::Trace;
use super::tracer::StepTracer;
use crate::plan::passes::gain_sums;
use crate::plan::products::Call;
use crate::plan::{Form, GroupPlan, LayerPlan, ProjectionPlan};

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

    /// The gradient of DoRA's output on its way through the gain; returns the bytes that it leaves in the scratch.
    pub(super) fn backward_turned(&self, trace: &mut Trace, group: &GroupPlan, projection: &ProjectionPlan) -> u64 {
        let (width, y) = (projection.outputs(), self.act(projection.outputs()));
        let dropped = self.dropped(trace, group.inputs);
        trace.hold(MemoryCategory::Scratch, y);
        self.adapted(trace, (group, Module::Adapters), projection);
        trace.free(MemoryCategory::Scratch, dropped);
        let sums = gain_sums(self.tokens, width, self.host.memory());
        trace.spike(MemoryCategory::Scratch, sums);
        self.pass(trace, Module::Adapters, Pass::Add, width);
        if !self.plan.dropout() {
            return y;
        }
        trace.hold(MemoryCategory::Scratch, y);
        (0..2).for_each(|_| self.pass(trace, Module::Adapters, Pass::Bias, width));
        2 * y
    }

    /// What DoRA needs of the parameters, before each pass: row norms of W + s B A.
    pub(super) fn dora_factors(&self, trace: &mut Trace) {
        let layers = self.plan.layers.iter().map(|kind| &self.plan.kinds[*kind]);
        for group in layers.flat_map(LayerPlan::groups).chain([&self.plan.inputs]) {
            let projections = group.projections.iter();
            for projection in projections.filter(|projection| projection.adapter.is_some()) {
                self.dora_factors_of(trace, group, projection);
            }
        }
    }

    /// Products with r columns, whatever the tokens: A W^T and A A^T, and B (A A^T) with what the CPU makes of it.
    fn dora_factors_of(&self, trace: &mut Trace, group: &GroupPlan, projection: &ProjectionPlan) {
        let (rank, outputs, inputs) = (group.rank_of(projection), projection.outputs(), group.inputs);
        // A GPU multiplies W with A as other products read it.
        let left_bytes = if self.is_on_gpu() { self.c() } else { 4 };
        let product = |trace: &mut Trace, right, left_bytes, form, shape| {
            let call = Call {
                left_bytes,
                f32_result: true,
                // Norms are exact.
                in_bytes: false,
                ..self.call(right, form, shape)
            };
            self.product(trace, Module::Adapters, right, call);
        };
        let factors = left_bytes * (rank * outputs) as u64;
        trace.hold(MemoryCategory::Scratch, factors);
        product(trace, Right::Weight, left_bytes, Form::Nt, [rank, outputs, inputs]);
        let gram = 4 * (rank * rank) as u64;
        trace.hold(MemoryCategory::Scratch, gram);
        product(trace, Right::Adapter, 4, Form::Nt, [rank, rank, inputs]);
        // A sum over the ranks, a product, and that times B; a GPU has none of them outside a kernel.
        let [along, own] = match self.is_on_gpu() {
            true => [0; 2],
            false => [outputs, rank * outputs].map(|elements| 4 * elements as u64),
        };
        trace.hold(MemoryCategory::Scratch, along + own);
        product(trace, Right::Adapter, 4, Form::Nn, [outputs, rank, rank]);
        trace.spike(MemoryCategory::Scratch, own);
        trace.free(MemoryCategory::Scratch, factors + gram + along + own);
    }
}
