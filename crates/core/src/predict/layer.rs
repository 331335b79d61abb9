//! One decoder layer: what its passes hold, free and compute, in the engine's order.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Stage, Work};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::architecture::NormPlacement;
use crate::plan::attention::AttentionCall;
use crate::plan::{GroupPlan, LayerPlan, SavedTensor, Vectors};

use MemoryCategory::{AttentionWorkspace, SavedActivations, Scratch};

impl StepTracer<'_> {
    fn has_norm_behind(&self) -> bool {
        self.plan.architecture.norm_placement == NormPlacement::BeforeAndBehind
    }

    /// (H, I, Q, K)
    fn widths(&self) -> [usize; 4] {
        let architecture = &self.plan.architecture;
        let (query, key) = (architecture.query_size(), architecture.kv_size());
        [architecture.hidden_size, architecture.intermediate_size, query, key]
    }

    /// Bytes that a layer keeps for its backward pass besides its input.
    pub fn saved_bytes(&self, kind: &LayerPlan) -> u64 {
        self.saved(kind, &SavedTensor::ALL) - self.act(self.plan.architecture.hidden_size)
    }

    /// Bytes of what it keeps and does not hold until its backward pass.
    pub fn dropped_bytes(&self, kind: &LayerPlan) -> u64 {
        let dropped = SavedTensor::ALL
            .into_iter()
            .filter(|tensor| !tensor.is_held(self.host.memory()));
        self.saved(kind, &dropped.collect::<Vec<_>>())
    }

    /// The layer's output into the scratch, what it saves into `kept`. Its input is the caller's.
    pub fn layer_forward(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        self.attention_forward(trace, kind, kept);
        self.mlp_inner(trace, kind, kept);
        self.mlp_outer(trace, kind, kept);
    }

    /// What the layer saves, made again from its input.
    pub fn layer_recall(&self, trace: &mut Trace, kind: &LayerPlan) {
        let [hidden, inner, ..] = self.widths();
        self.attention_forward(trace, kind, SavedActivations);
        self.mlp_inner(trace, kind, SavedActivations);
        if self.has_norm_behind() {
            self.mlp_outer(trace, kind, SavedActivations);
            trace.free(Scratch, self.act(hidden));
            return;
        }
        self.adapter_products(trace, &kind.down, SavedActivations);
        trace.free(Scratch, self.act(inner));
    }

    /// The stream behind attention into `kept`.
    fn attention_forward(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let ([hidden, _, query, key], architecture) = (self.widths(), &self.plan.architecture);
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, hidden);
        self.group_forward(trace, (&kind.qkv, Module::QueryKeyValue), kept, Target::New(kept));
        trace.free(Scratch, self.act(hidden));
        self.rotate(trace, kept);
        trace.hold(kept, self.act(query) + self.wide(architecture.heads));
        let call = AttentionCall {
            longest: self.stream.longest(),
            window: kind.window,
            backward: false,
            pairs: self.multiplies_pairs(),
            vectors: self.host.vectors,
        };
        self.heads().keep(&mut trace.scratch, call);
        trace.run(Work::Attention {
            window: kind.window,
            backward: false,
        });
        self.out(trace, (&kind.output, Module::Output), kept, kept);
        if architecture.query_key_norm {
            trace.free(Scratch, self.act(query) + self.act(key));
        }
    }

    /// Rotates heads. With head norms they go into the scratch, and what the norms keep into `kept`.
    fn rotate(&self, trace: &mut Trace, kept: MemoryCategory) {
        let ([_, _, query, key], architecture) = (self.widths(), &self.plan.architecture);
        if architecture.query_key_norm {
            for (width, heads) in [(query, architecture.heads), (key, architecture.kv_heads)] {
                trace.hold(Scratch, self.act(width));
                trace.hold(kept, self.wide(heads));
                // On a GPU the rotation is of one pass with it.
                if self.host.vectors != Vectors::None {
                    self.pass(trace, Module::Norms, Pass::NormForward, width);
                }
            }
        }
        self.turn(trace);
    }

    /// The rotation itself: on a GPU in place.
    fn turn(&self, trace: &mut Trace) {
        let [_, _, query, key] = self.widths();
        for width in [query, key] {
            if self.host.vectors != Vectors::None {
                trace.spike(Scratch, self.act(width));
            }
            self.pass(trace, Module::Attention, Pass::Rope, width);
        }
    }

    /// The end of a block: the sum of the residual stream and the group's output, through the norm behind it where there
    /// is one, into `target`; what the norm keeps into `kept`.
    fn out(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        kept: MemoryCategory,
        target: MemoryCategory,
    ) {
        if !self.has_norm_behind() {
            return self.group_forward(trace, (group, module), kept, Target::Sum(target));
        }
        let hidden = self.plan.architecture.hidden_size;
        self.group_forward(trace, (group, module), kept, Target::New(Scratch));
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, hidden);
        trace.rename(Scratch, kept, self.act(hidden));
        trace.hold(target, self.act(hidden));
        self.pass(trace, module, Pass::Add, hidden);
        trace.free(Scratch, self.act(hidden));
    }

    /// Everything of the MLP up to the activation's output, which stays in the scratch.
    fn mlp_inner(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let [hidden, inner, ..] = self.widths();
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, hidden);
        self.group_forward(trace, (&kind.gate_up, Module::GateUp), kept, Target::New(kept));
        trace.free(Scratch, self.act(hidden));
        trace.hold(Scratch, self.act(inner));
        self.pass(trace, Module::GateUp, Pass::GluForward, inner);
    }

    /// The stream behind the MLP into the scratch; frees the activation's output.
    fn mlp_outer(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        self.out(trace, (&kind.down, Module::Down), kept, Scratch);
        trace.free(Scratch, self.act(self.plan.architecture.intermediate_size));
    }

    /// Backward through the layer. dy is in the scratch and is replaced by dx, which is left there where it is wanted;
    /// all that was saved, the layer's input included, is freed. `between` are the bytes that were not held and are made again.
    pub fn layer_backward(&self, trace: &mut Trace, kind: &LayerPlan, wants_dx: bool, between: u64) {
        self.mlp_backward(trace, kind, between);
        self.attention_backward(trace, kind, wants_dx);
    }

    /// Returns the bytes of the gradient before the norm behind a block, where there is one.
    fn backward_behind(&self, trace: &mut Trace) -> u64 {
        if !self.has_norm_behind() {
            return 0;
        }
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        trace.spike(Scratch, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormBackward, hidden);
        trace.free(SavedActivations, self.act(hidden) + self.wide(1));
        self.act(hidden)
    }

    /// The normed input of a block, made again.
    fn normed(&self, trace: &mut Trace) -> u64 {
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        trace.spike(Scratch, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, hidden);
        self.act(hidden)
    }

    /// The stream behind attention into the scratch, made again.
    fn attention_output_again(&self, trace: &mut Trace, kind: &LayerPlan) {
        trace.stage = Stage::Recompute;
        if self.has_norm_behind() {
            let normed = self.normed(trace);
            trace.hold(Scratch, normed);
            self.pass(trace, Module::Output, Pass::Add, self.plan.architecture.hidden_size);
            trace.free(Scratch, normed);
        } else {
            self.group_output_again(trace, (&kind.output, Module::Output));
        }
        trace.stage = Stage::Backward;
    }

    fn mlp_backward(&self, trace: &mut Trace, kind: &LayerPlan, between: u64) {
        let [_, inner, ..] = self.widths();
        let d_down = self.backward_behind(trace);
        let activation = |trace: &mut Trace| {
            trace.hold(Scratch, self.act(inner));
            self.pass(trace, Module::GateUp, Pass::GluForward, inner);
            self.act(inner)
        };
        self.group_backward(trace, (&kind.down, Module::Down), activation, d_down, true);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::DownXa]));
        if self.host.vectors == Vectors::None {
            // Both gradients lie in the places of the gate and of d_inner.
            trace.rename(SavedActivations, Scratch, self.act(inner));
        } else {
            trace.hold(Scratch, self.act(2 * inner));
            trace.free(Scratch, self.act(inner));
            trace.free(SavedActivations, self.act(inner));
        }
        self.pass(trace, Module::GateUp, Pass::GluBackward, inner);
        trace.free(SavedActivations, self.act(inner));
        if between > 0 {
            self.attention_output_again(trace, kind);
        }
        let group = (&kind.gate_up, Module::GateUp);
        self.group_backward(trace, group, |trace| self.normed(trace), self.act(2 * inner), true);
        self.norm_onto(trace);
        let freed = [SavedTensor::Between, SavedTensor::BetweenNorm, SavedTensor::GateUpXa];
        trace.free(Scratch, between);
        trace.free(SavedActivations, self.saved(kind, &freed) - between);
    }

    /// From d_normed and dy, both in the scratch, to the sum of dy and what the norm makes of d_normed.
    fn norm_onto(&self, trace: &mut Trace) {
        let hidden = self.plan.architecture.hidden_size;
        let one = self.act(hidden);
        trace.hold(Scratch, one);
        trace.spike(Scratch, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormBackward, hidden);
        trace.free(Scratch, 2 * one);
    }

    fn attention_backward(&self, trace: &mut Trace, kind: &LayerPlan, wants_dx: bool) {
        let ([hidden, _, query, key], architecture) = (self.widths(), &self.plan.architecture);
        let (q, k) = (self.act(query), self.act(key));
        let d_output = self.backward_behind(trace);
        self.group_backward(trace, (&kind.output, Module::Output), |_| 0, d_output, true);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::OutputXa]));
        let has_norm = architecture.query_key_norm;
        if has_norm {
            self.rotate(trace, Scratch);
            trace.free(Scratch, self.wide(architecture.heads + architecture.kv_heads));
        }
        self.attention_op_backward(trace, kind);
        trace.free(Scratch, q + if has_norm { q + k } else { 0 });
        let freed = [SavedTensor::Value, SavedTensor::AttentionOutput];
        trace.free(SavedActivations, self.saved(kind, &freed));
        self.turn(trace);
        if has_norm {
            for (width, heads) in [(query, architecture.heads), (key, architecture.kv_heads)] {
                trace.spike(Scratch, self.act(width) + self.wide(heads));
                self.pass(trace, Module::Norms, Pass::NormBackward, width);
            }
        }
        trace.free(
            SavedActivations,
            self.saved(kind, &[SavedTensor::Query, SavedTensor::Key]),
        );
        let wants_d_normed = wants_dx || kind.input_norm_trains;
        let group = (&kind.qkv, Module::QueryKeyValue);
        self.group_backward(trace, group, |trace| self.normed(trace), q + 2 * k, wants_d_normed);
        if wants_dx {
            self.norm_onto(trace);
        } else {
            trace.free(Scratch, self.act(hidden) * (1 + u64::from(wants_d_normed)));
        }
        let freed = [SavedTensor::Input, SavedTensor::HeadNorms, SavedTensor::QkvXa];
        trace.free(SavedActivations, self.saved(kind, &freed));
    }

    /// dq, dk and dv into the scratch.
    fn attention_op_backward(&self, trace: &mut Trace, kind: &LayerPlan) {
        let [_, _, query, key] = self.widths();
        trace.hold(Scratch, self.act(query) + self.act(2 * key));
        trace.run(Work::Attention {
            window: kind.window,
            backward: true,
        });
        let heads = self.heads();
        if self.host.vectors == Vectors::None {
            // The sum of o d_o over each head.
            return trace.spike(AttentionWorkspace, self.wide(heads.query));
        }
        let documents = self.stream.documents.iter();
        let shares: f64 = documents
            .map(|documents| documents.count * heads.shares(documents.tokens, kind.window) as f64)
            .sum();
        let (longest, pairs) = (self.stream.longest(), self.multiplies_pairs());
        let totals = (4 * self.host.threads * longest * heads.width) as u64;
        trace.hold(AttentionWorkspace, shares as u64);
        let packing = self.host.threads as u64 * heads.packing(longest, pairs, self.host.vectors);
        let call = AttentionCall {
            longest,
            window: kind.window,
            backward: true,
            pairs,
            vectors: self.host.vectors,
        };
        heads.keep(&mut trace.scratch, call);
        trace.spike(AttentionWorkspace, totals.max(packing));
        trace.free(AttentionWorkspace, shares as u64);
    }
}
