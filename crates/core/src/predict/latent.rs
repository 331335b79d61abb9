//! Latent attention: what the second projections and the ways to and from attention hold, free and compute, in the engine's order.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::architecture::Latent;
use crate::plan::{GroupPlan, LayerPlan, SavedTensor};

use MemoryCategory::{SavedActivations, Scratch};

impl StepTracer<'_> {
    /// From the normed input, whose bytes are in the scratch, to queries, keys and values in `kept`.
    pub(super) fn latent_forward(
        &self,
        trace: &mut Trace,
        kind: &LayerPlan,
        latent: Latent,
        normed: u64,
        kept: MemoryCategory,
    ) {
        let Some(plan) = &kind.latent else { return };
        self.group_forward(trace, (&kind.qkv, Module::QueryKeyValue), kept, Target::New(kept));
        trace.free(Scratch, normed);
        let (query, shared) = (self.act(kind.heads.query_size()), self.act(latent.rotary_dims));
        trace.rename(kept, Scratch, shared);
        match latent.query_rank {
            Some(_) => self.expand(trace, &plan.query, kept),
            None => trace.rename(kept, Scratch, query),
        }
        self.expand(trace, &plan.key_value, kept);
        trace.hold(kept, query);
        self.pass(trace, Module::Attention, Pass::Rope, kind.heads.query_size());
        trace.free(Scratch, query);
        trace.spike(Scratch, shared);
        self.pass(trace, Module::Attention, Pass::Rope, latent.rotary_dims);
        let of_heads = kind.heads.key_size() + kind.heads.value_size();
        trace.hold(kept, self.act(of_heads));
        self.pass(trace, Module::Attention, Pass::Copy, of_heads);
        trace.free(Scratch, self.act(plan.key_value.outputs()) + shared);
    }

    /// A norm and the projection behind it: the output into the scratch.
    fn expand(&self, trace: &mut Trace, group: &GroupPlan, kept: MemoryCategory) {
        let normed = self.act(group.inputs);
        trace.hold(Scratch, normed);
        trace.hold(kept, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, group.inputs);
        self.group_forward(trace, (group, Module::QueryKeyValue), kept, Target::New(Scratch));
        trace.free(Scratch, normed);
    }

    /// From the gradients of queries, keys and values in the scratch to those of the first projections' outputs.
    pub(super) fn latent_backward(&self, trace: &mut Trace, kind: &LayerPlan, latent: Latent) {
        let Some(plan) = &kind.latent else { return };
        trace.free(
            SavedActivations,
            self.saved(kind, &[SavedTensor::Query, SavedTensor::Key]),
        );
        let of_heads = kind.heads.key_size() + kind.heads.value_size();
        let (expanded, shared) = (self.act(plan.key_value.outputs()), self.act(latent.rotary_dims));
        trace.hold(Scratch, expanded + shared);
        self.pass(trace, Module::Attention, Pass::Copy, of_heads);
        trace.free(Scratch, self.act(of_heads));
        for width in [kind.heads.query_size(), latent.rotary_dims] {
            trace.spike(Scratch, self.act(width));
            self.pass(trace, Module::Attention, Pass::Rope, width);
        }
        self.expand_backward(trace, &plan.key_value);
        if latent.query_rank.is_some() {
            self.expand_backward(trace, &plan.query);
        }
    }

    /// From the gradient of a second projection's output to that of the norm's input, both in the scratch; frees what was saved.
    fn expand_backward(&self, trace: &mut Trace, group: &GroupPlan) {
        let latent = self.act(group.inputs);
        let normed = |trace: &mut Trace| {
            trace.hold(Scratch, latent);
            trace.spike(Scratch, self.wide(1));
            self.pass(trace, Module::Norms, Pass::NormForward, group.inputs);
            latent
        };
        let outputs = self.act(group.outputs());
        self.group_backward(trace, (group, Module::QueryKeyValue), normed, outputs, true);
        self.norm_weight(trace, [self.tokens, group.inputs]);
        trace.spike(Scratch, latent + self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormBackward, group.inputs);
        trace.free(SavedActivations, latent + self.wide(1) + self.act(group.ranks()));
    }
}
