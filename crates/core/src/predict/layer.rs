//! One decoder layer: what its passes hold, free and compute, in the engine's order.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Stage, Work};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::architecture::{KeyValueSource, Mixer, NormPlacement, QueryKeyNorm};
use crate::plan::attention::AttentionCall;
use crate::plan::passes::norm_sums;
use crate::plan::{GroupPlan, KeySharing, LayerPlan, SavedTensor, Vectors};

use MemoryCategory::{AttentionWorkspace, SavedActivations, Scratch};

impl StepTracer<'_> {
    fn has_norm_behind(&self) -> bool {
        self.plan.architecture.norm_placement.is_behind()
    }

    fn has_norm_before(&self) -> bool {
        self.plan.architecture.norm_placement.is_before()
    }

    /// Whether attention and MLP read the same.
    fn is_side_by_side(&self) -> bool {
        self.plan.architecture.norm_placement == NormPlacement::Shared
    }

    /// Whether what a block adds to the stream is multiplied with a factor.
    fn is_scaled(&self) -> bool {
        self.plan.architecture.residual_scale.is_some()
    }

    /// A pass of a norm, whose result is held already. Rows that lose their mean are held beside it.
    pub(super) fn norm_pass(&self, trace: &mut Trace, pass: Pass, width: usize) {
        self.pass(trace, Module::Norms, pass, width);
        if self.plan.architecture.centred_norms {
            trace.spike(Scratch, self.act(width));
            let times = if pass == Pass::NormBackward { 2 } else { 1 };
            (0..times).for_each(|_| self.pass(trace, Module::Norms, Pass::Copy, width));
        }
    }

    /// Whether the weights of norms train; of those that `modules_to_save` names, all count.
    pub(super) fn norms_train(&self) -> bool {
        let of_adapter = self
            .plan
            .adapter
            .as_ref()
            .map(|adapter| &adapter.settings.modules_to_save);
        of_adapter.is_none_or(|modules| modules.iter().any(|module| module.ends_with("norm")))
    }

    /// The gradient of a norm's weight, where it trains, and the sum of it and what was there before.
    pub(super) fn norm_weight(&self, trace: &mut Trace, [rows, width]: [usize; 2]) {
        if !self.norms_train() {
            return;
        }
        let centred = match self.plan.architecture.centred_norms {
            true => (rows * width) as u64 * self.c(),
            false => 0,
        };
        let gradient = 4 * width as u64;
        trace.hold(Scratch, centred + gradient);
        trace.spike(Scratch, norm_sums(rows, width, self.host.memory()));
        trace.spike(Scratch, gradient);
        trace.free(Scratch, centred + gradient);
    }

    /// Width of queries and of keys, where those are the layer's own, and how many rstd their norms keep for each token.
    fn head_norms(&self, kind: &LayerPlan) -> Vec<(usize, usize)> {
        let [_, _, query, key] = self.widths(kind);
        let mut norms = match kind.head_norm {
            QueryKeyNorm::None => Vec::new(),
            QueryKeyNorm::Heads | QueryKeyNorm::RotatedHeads | QueryKeyNorm::RotatedUnweighted => {
                vec![(query, kind.heads.query), (key, kind.heads.key)]
            }
            QueryKeyNorm::AllHeads => vec![(query, 1), (key, 1)],
        };
        if kind.is_reader() {
            norms.truncate(1);
        }
        norms
    }

    /// Tokens of the longest document or chunk.
    fn longest_of(&self, kind: &LayerPlan) -> usize {
        let longest = self.stream.longest();
        kind.chunk.map_or(longest, |chunk| longest.min(chunk))
    }

    /// (H, I, Q, K)
    fn widths(&self, kind: &LayerPlan) -> [usize; 4] {
        let (query, key) = (kind.heads.query_size(), kind.heads.key_size());
        [self.plan.architecture.hidden_size, kind.inner(), query, key]
    }

    /// Bytes that a layer keeps for its backward pass besides its input.
    pub(super) fn saved_bytes(&self, kind: &LayerPlan) -> u64 {
        self.saved(kind, &SavedTensor::ALL) - self.act(self.plan.architecture.hidden_size)
    }

    /// Bytes of what it keeps and does not hold until its backward pass.
    pub(super) fn dropped_bytes(&self, kind: &LayerPlan) -> u64 {
        let dropped = SavedTensor::ALL
            .into_iter()
            .filter(|tensor| !tensor.is_held(self.host.memory()));
        self.saved(kind, &dropped.collect::<Vec<_>>())
    }

    /// The layer's output into the scratch, what it saves into `kept`. Its input is the caller's.
    pub(super) fn layer_forward(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        self.attention_forward(trace, kind, kept);
        if self.plan.architecture.has_branches() {
            self.branches_forward(trace, kind, kept);
            return self.layer_scalar(trace);
        }
        if kind.experts.is_some() {
            self.experts_inner(trace, kind, kept);
            return self.experts_outer(trace, kind, kept);
        }
        self.mlp_inner(trace, kind, kept);
        self.mlp_outer(trace, kind, kept, self.stream_behind(kind, kept));
        trace.free(Scratch, self.between_in_scratch());
        self.input_forward(trace, kind, kept);
        self.layer_scalar(trace);
    }

    /// The layer's output, or its gradient, times the layer's own number.
    fn layer_scalar(&self, trace: &mut Trace) {
        let architecture = &self.plan.architecture;
        if architecture.layer_scalar {
            trace.spike(Scratch, self.act(architecture.hidden_size));
            self.pass(trace, Module::Norms, Pass::Copy, architecture.hidden_size);
        }
    }

    /// Bytes of the stream behind attention where nobody keeps it, since the MLP reads the layer's input.
    fn between_in_scratch(&self) -> u64 {
        match self.is_side_by_side() {
            true => self.act(self.plan.architecture.hidden_size),
            false => 0,
        }
    }

    /// What the layer saves, made again from its input.
    pub(super) fn layer_recompute(&self, trace: &mut Trace, kind: &LayerPlan) {
        let [hidden, inner, ..] = self.widths(kind);
        if kind.input.is_some() {
            self.layer_forward(trace, kind, SavedActivations);
            return trace.free(Scratch, self.act(hidden));
        }
        self.attention_forward(trace, kind, SavedActivations);
        if self.plan.architecture.has_branches() {
            self.branches_forward(trace, kind, SavedActivations);
            return trace.free(Scratch, self.act(hidden));
        }
        if kind.experts.is_some() {
            self.experts_inner(trace, kind, SavedActivations);
            return self.experts_outer_recompute(trace, kind, SavedActivations);
        }
        self.mlp_inner(trace, kind, SavedActivations);
        if self.has_norm_behind() {
            self.mlp_outer(trace, kind, SavedActivations, Scratch);
            trace.free(Scratch, self.act(hidden));
            return;
        }
        self.adapter_products(trace, &kind.down, SavedActivations);
        trace.free(Scratch, self.act(inner) + self.between_in_scratch());
    }

    /// The stream behind attention into `kept`, or into the scratch where nobody keeps it.
    fn attention_forward(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let ([_, _, query, _], architecture) = (self.widths(kind), &self.plan.architecture);
        let target = if self.is_side_by_side() { Scratch } else { kept };
        if kind.mixer != Mixer::Attention {
            return self.mixer_forward(trace, kind, kept, target);
        }
        let normed = self.norm_before(trace, kept);
        if let Some(latent) = architecture.latent {
            self.latent_forward(trace, kind, latent, normed, kept);
        } else {
            self.group_forward(trace, (&kind.qkv, Module::QueryKeyValue), kept, Target::New(kept));
            trace.free(Scratch, normed);
            if architecture.head_gates {
                trace.hold(kept, self.act(2 * query));
                self.pass(trace, Module::Attention, Pass::Copy, 2 * query);
                trace.free(kept, self.act(2 * query));
            }
            if kind.head_norm.is_after_rotation() {
                self.turn(trace, kind, Scratch);
            }
            self.rotate(trace, kind, kept);
        }
        trace.hold(kept, self.act(kind.heads.attended_size()) + self.wide(kind.heads.query));
        let call = AttentionCall {
            longest: self.longest_of(kind),
            window: kind.window,
            backward: false,
            pairs: self.multiplies_pairs(),
            vectors: self.host.vectors,
        };
        kind.heads.keep(&mut trace.scratch, call);
        trace.run(Work::Attention {
            heads: kind.heads,
            window: kind.window,
            chunk: kind.chunk,
            backward: false,
        });
        if architecture.sinks {
            trace.spike(Scratch, self.wide(3 * kind.heads.query));
            self.pass(trace, Module::Attention, Pass::Copy, query);
        }
        let gated = self.gated(trace, kind);
        self.out(trace, (&kind.output, Module::Output), kept, target);
        trace.free(Scratch, gated);
        // What later layers read is not let go of.
        let shared = match trace.stage {
            Stage::Forward => self.shared_bytes(kind),
            _ => 0,
        };
        trace.free(Scratch, self.normed_heads(kind) - shared);
    }

    /// Where keys and values go that attention reads: later layers may read them, too.
    fn attended_keys(&self, trace: &Trace, kind: &LayerPlan) -> MemoryCategory {
        match (kind.sharing, trace.stage) {
            (KeySharing::Source { .. }, Stage::Forward) => SavedActivations,
            _ => Scratch,
        }
    }

    /// Bytes of queries, keys and values behind their norms, as far as they have some.
    fn normed_heads(&self, kind: &LayerPlan) -> u64 {
        let normed = self.head_norms(kind).into_iter().map(|(width, _)| width);
        self.act(normed.sum()) + self.normed_values(kind)
    }

    /// Bytes of the values behind their norm, where there is one.
    fn normed_values(&self, kind: &LayerPlan) -> u64 {
        match self.plan.architecture.value_norm && !kind.is_reader() {
            true => self.act(kind.heads.key_size()),
            false => 0,
        }
    }

    /// Attention's result times its gates, where it has some, into the scratch; returns its bytes.
    pub(super) fn gated(&self, trace: &mut Trace, kind: &LayerPlan) -> u64 {
        if !self.plan.architecture.head_gates {
            return 0;
        }
        let width = kind.heads.query_size();
        trace.hold(Scratch, self.act(width));
        self.pass(trace, Module::Attention, Pass::GluForward, width);
        self.act(width)
    }

    /// The norm before a block: its output into the scratch, what it keeps into `kept`. Returns the output's bytes.
    pub(super) fn norm_before(&self, trace: &mut Trace, kept: MemoryCategory) -> u64 {
        if !self.has_norm_before() {
            return 0;
        }
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.norm_pass(trace, Pass::NormForward, hidden);
        self.act(hidden)
    }

    /// What comes between the projections and attention, or what is left of it where heads were rotated first. With norms
    /// the heads, and the values, go into the scratch, and what the norms keep into `kept`.
    fn rotate(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let order = kind.head_norm;
        // On a GPU the rotation is of one pass with norms of single heads, where a layer has keys of its own.
        let is_one_pass = self.host.vectors == Vectors::None && order == QueryKeyNorm::Heads;
        let is_one_pass = is_one_pass && kind.rotates && !kind.is_reader();
        let keys = self.attended_keys(trace, kind);
        let before_rotation = match self.is_on_gpu() || !kind.rotates {
            true => [Scratch, keys],
            false => [Scratch; 2],
        };
        for ((width, rstd), target) in self.head_norms(kind).into_iter().zip(before_rotation) {
            trace.hold(target, self.act(width));
            trace.hold(kept, self.wide(rstd));
            if !is_one_pass {
                self.pass(trace, Module::Norms, Pass::NormForward, width);
            }
        }
        if !order.is_after_rotation() {
            self.turn(trace, kind, keys);
        }
        if self.plan.architecture.value_norm && !kind.is_reader() {
            trace.hold(keys, self.normed_values(kind));
            trace.hold(kept, self.wide(kind.heads.key));
            self.pass(trace, Module::Norms, Pass::NormForward, kind.heads.key_size());
        }
    }

    /// The rotation itself, of keys in the scratch into `keys`: on a GPU in place, but for queries alone.
    fn turn(&self, trace: &mut Trace, kind: &LayerPlan, keys: MemoryCategory) {
        if !kind.rotates {
            return;
        }
        let [_, _, query, key] = self.widths(kind);
        let turned = if kind.is_reader() {
            vec![(query, Scratch)]
        } else {
            vec![(query, Scratch), (key, keys)]
        };
        for (width, target) in turned {
            if !self.is_on_gpu() || kind.is_reader() {
                trace.hold(target, self.act(width));
                trace.free(Scratch, self.act(width));
            }
            self.pass(trace, Module::Attention, Pass::Rope, width);
        }
    }

    /// The end of a block: the sum of the residual stream and the group's output, through the norm behind it where there
    /// is one, into `target`; what the norm keeps into `kept`.
    pub(super) fn out(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        kept: MemoryCategory,
        target: MemoryCategory,
    ) {
        if !self.has_norm_behind() && !self.is_scaled() {
            return self.group_forward(trace, (group, module), kept, Target::Sum(target));
        }
        let hidden = self.plan.architecture.hidden_size;
        if !self.has_norm_behind() {
            self.group_forward(trace, (group, module), kept, Target::New(Scratch));
            trace.hold(target, self.act(hidden));
            self.pass(trace, module, Pass::Add, hidden);
            trace.free(Scratch, self.act(hidden));
            return;
        }
        // The norm keeps what it reads.
        self.group_forward(trace, (group, module), kept, Target::New(kept));
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.norm_pass(trace, Pass::NormForward, hidden);
        trace.hold(target, self.act(hidden));
        self.pass(trace, module, Pass::Add, hidden);
        trace.free(Scratch, self.act(hidden));
    }

    /// Everything of the MLP up to the activation's output, which stays in the scratch.
    fn mlp_inner(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let [_, inner, ..] = self.widths(kind);
        let normed = self.norm_before(trace, kept);
        self.group_forward(trace, (&kind.gate_up, Module::GateUp), kept, Target::New(kept));
        trace.free(Scratch, normed);
        trace.hold(Scratch, self.act(inner));
        self.pass(trace, Module::GateUp, Pass::GluForward, inner);
    }

    /// The stream behind the MLP into `target`; frees the activation's output.
    fn mlp_outer(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory, target: MemoryCategory) {
        self.out(trace, (&kind.down, Module::Down), kept, target);
        trace.free(Scratch, self.act(kind.inner()));
    }

    /// Backward through the layer. dy is in the scratch and is replaced by dx, which is left there where it is wanted;
    /// all that was saved, the layer's input included, is freed. `between` are the bytes that were not held and are made again.
    pub(super) fn layer_backward(&self, trace: &mut Trace, kind: &LayerPlan, wants_dx: bool, between: u64) {
        self.layer_scalar(trace);
        self.input_backward(trace, kind);
        match kind.experts {
            Some(_) if self.plan.architecture.has_branches() => self.branches_backward(trace, kind, between),
            Some(_) => self.experts_backward(trace, kind, between),
            None => self.mlp_backward(trace, kind, between),
        }
        if self.is_side_by_side() {
            // Attention reads the same dy, so that it is still there.
            trace.hold(Scratch, self.act(self.plan.architecture.hidden_size));
        }
        self.attention_backward(trace, kind, wants_dx);
    }

    /// Returns the bytes of the gradient before the norm or factor behind a block, where there is one.
    pub(super) fn backward_behind(&self, trace: &mut Trace) -> u64 {
        if !self.has_norm_behind() && !self.is_scaled() {
            return 0;
        }
        let hidden = self.plan.architecture.hidden_size;
        if self.has_norm_behind() {
            self.norm_weight(trace, [self.tokens, hidden]);
        }
        trace.hold(Scratch, self.act(hidden));
        if !self.has_norm_behind() {
            self.pass(trace, Module::Norms, Pass::Copy, hidden);
            return self.act(hidden);
        }
        trace.spike(Scratch, self.wide(1));
        self.norm_pass(trace, Pass::NormBackward, hidden);
        trace.free(SavedActivations, self.act(hidden) + self.wide(1));
        self.act(hidden)
    }

    /// The output of a norm over H, made again.
    pub(super) fn normed(&self, trace: &mut Trace) -> u64 {
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        trace.spike(Scratch, self.wide(1));
        self.norm_pass(trace, Pass::NormForward, hidden);
        self.act(hidden)
    }

    /// The input of a block's first layers, made again where a norm stands before them.
    pub(super) fn input_again(&self, trace: &mut Trace) -> u64 {
        match self.has_norm_before() {
            true => self.normed(trace),
            false => 0,
        }
    }

    /// The stream behind attention into the scratch, made again.
    pub(super) fn attention_output_again(&self, trace: &mut Trace, kind: &LayerPlan) {
        trace.stage = Stage::Recompute;
        let mixed = match self.has_norm_behind() {
            true => 0,
            false => self.mixed(trace, kind),
        };
        if self.has_norm_behind() {
            let normed = self.normed(trace);
            trace.hold(Scratch, normed);
            self.pass(trace, Module::Output, Pass::Add, self.plan.architecture.hidden_size);
            trace.free(Scratch, normed);
        } else if self.is_scaled() {
            let hidden = self.plan.architecture.hidden_size;
            self.group_output_again(trace, (&kind.output, Module::Output), Target::New(Scratch));
            trace.hold(Scratch, self.act(hidden));
            self.pass(trace, Module::Output, Pass::Add, hidden);
            trace.free(Scratch, self.act(hidden));
        } else {
            self.group_output_again(trace, (&kind.output, Module::Output), Target::Sum(Scratch));
        }
        trace.free(Scratch, mixed);
        trace.stage = Stage::Backward;
    }

    fn mlp_backward(&self, trace: &mut Trace, kind: &LayerPlan, between: u64) {
        let [_, inner, ..] = self.widths(kind);
        let d_down = self.backward_behind(trace);
        let activation = |trace: &mut Trace| {
            trace.hold(Scratch, self.act(inner));
            self.pass(trace, Module::GateUp, Pass::GluForward, inner);
            self.act(inner)
        };
        self.group_backward(trace, (&kind.down, Module::Down), activation, d_down, true);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::DownXa]));
        let is_gated = self.plan.architecture.activation.is_gated();
        let d_projected = self.act(if is_gated { 2 * inner } else { inner });
        if !is_gated {
            trace.hold(Scratch, self.act(inner));
            trace.free(Scratch, self.act(inner));
        } else if self.host.vectors == Vectors::None {
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
        self.group_backward(trace, group, |trace| self.input_again(trace), d_projected, true);
        self.norm_onto(trace);
        let freed = [SavedTensor::Between, SavedTensor::BetweenNorm, SavedTensor::GateUpXa];
        trace.free(Scratch, between);
        trace.free(SavedActivations, self.saved(kind, &freed) - between);
    }

    /// From d_normed and dy, both in the scratch, to the sum of dy and what the norm makes of d_normed.
    pub(super) fn norm_onto(&self, trace: &mut Trace) {
        let hidden = self.plan.architecture.hidden_size;
        let one = self.act(hidden);
        if self.has_norm_before() {
            self.norm_weight(trace, [self.tokens, hidden]);
        }
        trace.hold(Scratch, one);
        if self.has_norm_before() {
            trace.spike(Scratch, self.wide(1));
            self.norm_pass(trace, Pass::NormBackward, hidden);
        }
        if !self.has_norm_before() || self.plan.architecture.centred_norms {
            self.pass(trace, Module::Norms, Pass::Add, hidden);
        }
        trace.free(Scratch, 2 * one);
    }

    /// The gradient of the weight of the last norm on the way down, where nothing below it trains.
    pub(super) fn last_norm_weight(&self, trace: &mut Trace, kind: &LayerPlan) {
        if kind.input_norm_trains && self.has_norm_before() {
            self.norm_weight(trace, [self.tokens, self.plan.architecture.hidden_size]);
        }
    }

    fn attention_backward(&self, trace: &mut Trace, kind: &LayerPlan, wants_dx: bool) {
        let ([hidden, _, query, key], architecture) = (self.widths(kind), &self.plan.architecture);
        let (q, k) = (self.act(query), self.act(key));
        let d_output = match self.is_side_by_side() {
            true => self.act(hidden),
            false => self.backward_behind(trace),
        };
        if kind.mixer != Mixer::Attention {
            return self.mixer_backward(trace, kind, d_output, wants_dx);
        }
        self.group_backward(
            trace,
            (&kind.output, Module::Output),
            |trace| self.gated(trace, kind),
            d_output,
            true,
        );
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::OutputXa]));
        if architecture.head_gates {
            trace.hold(Scratch, 2 * q);
            self.pass(trace, Module::Attention, Pass::GluBackward, query);
            trace.free(Scratch, q);
            trace.free(SavedActivations, self.saved(kind, &[SavedTensor::HeadGates]));
        }
        let norms = self.head_norms(kind);
        let value_norm = architecture.value_norm && !kind.is_reader();
        if !norms.is_empty() {
            self.rotate(trace, kind, Scratch);
            let of_values = if value_norm { kind.heads.key } else { 0 };
            let of_heads: usize = norms.iter().map(|(_, rstd)| rstd).sum();
            trace.free(Scratch, self.wide(of_heads + of_values));
        }
        self.attention_op_backward(trace, kind);
        let result = self.act(kind.heads.attended_size());
        trace.free(Scratch, result + self.normed_heads(kind));
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::AttentionOutput]));
        self.share_gradients(trace, kind);
        if value_norm {
            trace.spike(Scratch, k + self.wide(kind.heads.key));
            self.pass(trace, Module::Norms, Pass::NormBackward, key);
        }
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::Value]));
        if let Some(latent) = architecture.latent {
            self.latent_backward(trace, kind, latent);
        } else {
            self.turn(trace, kind, Scratch);
            for (width, rstd) in norms {
                if kind.head_norm != QueryKeyNorm::RotatedUnweighted {
                    self.norm_weight(trace, [self.tokens * rstd, width / rstd]);
                }
                trace.spike(Scratch, self.act(width) + self.wide(rstd));
                self.pass(trace, Module::Norms, Pass::NormBackward, width);
            }
            trace.free(
                SavedActivations,
                self.saved(kind, &[SavedTensor::Query, SavedTensor::Key]),
            );
        }
        if kind.keys == KeyValueSource::OneProjection {
            trace.hold(Scratch, k);
            self.pass(trace, Module::QueryKeyValue, Pass::Add, key);
            trace.free(Scratch, 2 * k);
        }
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::HeadNorms]));
        let wants_d_normed = wants_dx || kind.input_norm_trains;
        if architecture.head_gates {
            trace.hold(Scratch, 2 * q);
            self.pass(trace, Module::Attention, Pass::Copy, 2 * query);
            trace.free(Scratch, 2 * q);
        }
        let (group, outputs) = ((&kind.qkv, Module::QueryKeyValue), self.act(kind.qkv.outputs()));
        self.group_backward(trace, group, |trace| self.input_again(trace), outputs, wants_d_normed);
        if wants_dx {
            self.norm_onto(trace);
        } else {
            self.last_norm_weight(trace, kind);
            trace.free(Scratch, self.act(hidden) * (1 + u64::from(wants_d_normed)));
        }
        let freed = [SavedTensor::Input, SavedTensor::QkvXa];
        trace.free(SavedActivations, self.saved(kind, &freed));
    }

    /// dq, dk and dv into the scratch.
    fn attention_op_backward(&self, trace: &mut Trace, kind: &LayerPlan) {
        let [_, _, query, key] = self.widths(kind);
        trace.hold(Scratch, self.act(query + key + kind.heads.value_size()));
        trace.run(Work::Attention {
            heads: kind.heads,
            window: kind.window,
            chunk: kind.chunk,
            backward: true,
        });
        let heads = kind.heads;
        if self.host.vectors == Vectors::None {
            // The sum of o d_o over each head.
            return trace.spike(AttentionWorkspace, self.wide(heads.query));
        }
        let documents = self.stream.in_chunks(kind.chunk).into_iter();
        let shares: f64 = documents
            .map(|documents| documents.count * heads.shares(documents.tokens, kind.window) as f64)
            .sum();
        trace.hold(AttentionWorkspace, shares as u64);
        let call = AttentionCall {
            longest: self.longest_of(kind),
            window: kind.window,
            backward: true,
            pairs: self.multiplies_pairs(),
            vectors: self.host.vectors,
        };
        heads.keep(&mut trace.scratch, call);
        trace.spike(AttentionWorkspace, heads.backward_room(call, self.host.threads));
        trace.free(AttentionWorkspace, shares as u64);
    }
}
