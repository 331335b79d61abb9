//! Experts and an MLP as branches with norms of their own: what their passes hold, free and compute, in the engine's order.

use super::experts::Mixture;
use super::memory_category::MemoryCategory;
use super::op::{Module, Pass};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::plan::{LayerPlan, SavedTensor};

use MemoryCategory::{SavedActivations, Scratch};

impl StepTracer<'_> {
    /// The stream behind both branches into the scratch, what they save into `kept`.
    pub(super) fn branches_forward(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let Some(mixture) = self.mixture(kind) else { return };
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        let one = self.act(hidden);
        let normed = self.norm_before(trace, kept);
        self.group_forward(trace, (&kind.gate_up, Module::GateUp), kept, Target::New(kept));
        trace.hold(Scratch, self.act(kind.inner()));
        self.pass(trace, Module::GateUp, Pass::GluForward, kind.inner());
        trace.free(Scratch, normed);
        self.group_forward(trace, (&kind.down, Module::Down), kept, Target::New(kept));
        trace.free(Scratch, self.act(kind.inner()));
        self.norm_behind(trace, kept);
        self.route(trace, &mixture, kept);
        let normed = self.normed(trace);
        self.expert_inputs(trace, &mixture);
        trace.free(Scratch, normed);
        self.expert_units(trace, &mixture, kept);
        let rank = mixture.plan.down_rank;
        self.expert_xa(trace, &mixture, [inner, rank], kept);
        self.expert_projection(trace, &mixture, Module::Down, ([hidden, inner, rank], Scratch));
        trace.free(Scratch, self.of_rows(&mixture, inner));
        trace.hold(kept, one);
        self.pass_rows(trace, &mixture, Module::Down, Pass::Add, hidden);
        trace.free(Scratch, self.of_rows(&mixture, hidden));
        self.norm_behind(trace, kept);
        trace.hold(kept, one);
        self.pass(trace, Module::Down, Pass::Add, hidden);
        trace.free(Scratch, 2 * one);
        self.norm_behind(trace, kept);
        trace.hold(Scratch, one);
        self.pass(trace, Module::Down, Pass::Add, hidden);
        trace.free(Scratch, one);
    }

    /// A norm behind a branch, into the scratch, whose input is kept already.
    fn norm_behind(&self, trace: &mut Trace, kept: MemoryCategory) {
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.norm_pass(trace, Pass::NormForward, hidden);
    }

    /// Backward through both branches: dy, in the scratch, becomes the gradient of the stream before them.
    pub(super) fn branches_backward(&self, trace: &mut Trace, kind: &LayerPlan, between: u64) {
        let Some(mixture) = self.mixture(kind) else { return };
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        let one = self.act(hidden);
        if between > 0 {
            self.attention_output_again(trace, kind);
        }
        // Of the norm behind both branches; of the one behind the MLP.
        let (d_both, d_first) = (self.backward_behind(trace), self.backward_behind(trace));
        let normed = self.normed(trace);
        self.shared_gradient(trace, &mixture, kind);
        trace.free(Scratch, normed + d_first);
        self.norm_onto(trace);
        let d_second = self.backward_behind(trace);
        trace.free(Scratch, d_both);
        self.expert_down_backward(trace, &mixture);
        trace.free(Scratch, d_second);
        let freed = [SavedTensor::ExpertUp, SavedTensor::ExpertDownXa];
        trace.free(SavedActivations, self.saved(kind, &freed));
        let normed = self.normed(trace);
        self.expert_gate_up_backward(trace, &mixture);
        trace.free(Scratch, 2 * self.of_rows(&mixture, inner) + normed);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::ExpertGateUpXa]));
        trace.hold(Scratch, one);
        self.pass_rows(trace, &mixture, Module::GateUp, Pass::Add, hidden);
        trace.free(Scratch, self.of_rows(&mixture, hidden));
        self.norm_onto(trace);
        self.router_norm_backward(trace, &mixture);
        trace.free(Scratch, between);
        let freed = [
            SavedTensor::Between,
            SavedTensor::BetweenNorm,
            SavedTensor::Routing,
            SavedTensor::RouterXa,
        ];
        trace.free(SavedActivations, self.saved(kind, &freed) - between);
    }

    /// Adds the router's part to the gradient of the stream; frees the gradients of weights.
    fn router_norm_backward(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let hidden = self.plan.architecture.hidden_size;
        let (wide, copy) = (self.wide(hidden), self.wide_copy(hidden));
        let d_weights = self.row_weights(trace, mixture);
        trace.free(Scratch, d_weights);
        self.routed_backward(trace, mixture);
        trace.hold(Scratch, copy);
        trace.hold(Scratch, wide);
        trace.spike(Scratch, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormBackward, hidden);
        trace.free(Scratch, copy + wide);
        if self.c() < 4 {
            trace.hold(Scratch, self.act(hidden));
            trace.free(Scratch, wide);
        }
        trace.hold(Scratch, self.act(hidden));
        self.pass(trace, Module::GateUp, Pass::Add, hidden);
        trace.free(Scratch, 2 * self.act(hidden));
    }
}
