//! The mixture half of a decoder layer: what its passes hold, free and compute, in the engine's order.
//!
//! | letter | meaning |
//! |---|---|
//! | R | rows of all experts together: tokens times chosen experts |
//! | E, I, r | experts, width of one, rank of an adapter on them |

use super::expert_load::ExpertRows;
use super::memory_category::MemoryCategory;
use super::op::{Module, Op, Pass, Right, Work};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::architecture::Experts;
use crate::plan::products::{Call, SORTED_AT_ONCE, most_tiles};
use crate::plan::{ExpertsPlan, Form, GroupPlan, LayerPlan, SavedTensor};
use crate::recipe::Precision;

use MemoryCategory::{SavedActivations, Scratch};

/// The experts of a layer on a micro-batch.
pub(super) struct Mixture<'a> {
    pub experts: &'a Experts,
    pub plan: &'a ExpertsPlan,
    /// R
    pub rows: usize,
    of_experts: ExpertRows,
}

impl Mixture<'_> {
    /// Values of the split factors of `outputs` outputs, and of their gradients.
    fn split(&self, outputs: usize, rank: usize) -> u64 {
        (self.experts.count * outputs * rank) as u64
    }

    /// Whether gate and up have rows of B by turns.
    fn is_interleaved(&self) -> bool {
        let names = &self.experts.names;
        names.stacked && !names.swapped && !names.upright
    }
}

impl StepTracer<'_> {
    pub(super) fn mixture<'k>(&'k self, kind: &'k LayerPlan) -> Option<Mixture<'k>> {
        let (experts, plan) = (self.plan.architecture.experts.as_ref()?, kind.experts.as_ref()?);
        Some(Mixture {
            experts,
            plan,
            rows: self.tokens * experts.chosen,
            of_experts: ExpertRows::new(self.load, experts.count, self.tokens, experts.chosen),
        })
    }

    /// Bytes of `width` values for each row.
    pub(super) fn of_rows(&self, mixture: &Mixture<'_>, width: usize) -> u64 {
        (mixture.rows * width) as u64 * self.c()
    }

    /// Bytes of split factors, which a GPU has rounded.
    fn split_factors(&self, mixture: &Mixture<'_>, outputs: usize, rank: usize) -> u64 {
        let width = if self.is_on_gpu() { self.c() } else { 4 };
        width * mixture.split(outputs, rank)
    }

    /// B of all experts in the scratch, whose bytes it returns.
    fn split_b(&self, trace: &mut Trace, mixture: &Mixture<'_>, module: Module, [outputs, rank]: [usize; 2]) -> u64 {
        let split = self.split_factors(mixture, outputs, rank);
        if mixture.experts.names.swapped && rank == 1 && module == Module::Down {
            // One column lies as one row does.
            return 0;
        }
        trace.hold(Scratch, split);
        if mixture.is_interleaved() && module == Module::GateUp {
            // Every second row is copied first.
            trace.spike(Scratch, split);
        }
        split
    }

    /// Bytes of what tells a GPU where each expert's rows are: first rows and tiles.
    pub(super) fn offsets_bytes(&self) -> u64 {
        match &self.plan.architecture.experts {
            Some(experts) if self.is_on_gpu() => {
                let tiles = most_tiles(experts.count, self.tokens * experts.chosen);
                (4 * (experts.count + 1) + 8 * tiles) as u64
            }
            _ => 0,
        }
    }

    pub(super) fn pass_rows(&self, trace: &mut Trace, mixture: &Mixture<'_>, _: Module, pass: Pass, width: usize) {
        let elements = (mixture.rows * width) as f64;
        trace.run(Work::Pass { pass, elements });
    }

    /// A product of each expert's rows.
    fn grouped(&self, trace: &mut Trace, mixture: &Mixture<'_>, module: Module, right: Right, call: Call) {
        let spike = mixture.of_experts.keep(&call, &mut trace.scratch, self.host);
        trace.spike(Scratch, spike);
        let stage = trace.stage;
        let products = mixture.of_experts.products(&call, module, right);
        trace.ops.extend(products.map(|(product, times)| Op {
            stage,
            work: Work::Product(product),
            times,
        }));
    }

    /// x W^T or x W of all rows, with an adapter's term.
    fn project(
        &self,
        trace: &mut Trace,
        mixture: &Mixture<'_>,
        module: Module,
        form: Form,
        [columns, depth, rank]: [usize; 3],
    ) {
        let call = Call {
            adapter_depth: rank,
            ..self.call(Right::Weight, form, [mixture.rows, columns, depth])
        };
        self.grouped(trace, mixture, module, Right::Weight, call);
    }

    fn adapter_product(&self, trace: &mut Trace, mixture: &Mixture<'_>, form: Form, shape: [usize; 3]) {
        let call = self.call(Right::Adapter, form, shape);
        self.grouped(trace, mixture, Module::Adapters, Right::Adapter, call);
    }

    /// x A^T of all rows into `kept`.
    pub(super) fn expert_xa(
        &self,
        trace: &mut Trace,
        mixture: &Mixture<'_>,
        [inputs, rank]: [usize; 2],
        kept: MemoryCategory,
    ) {
        if rank > 0 {
            let own = self.swapped_a(trace, mixture, [inputs, rank]);
            trace.hold(kept, self.of_rows(mixture, rank));
            self.adapter_product(trace, mixture, Form::Nt, [mixture.rows, rank, inputs]);
            trace.free(Scratch, own);
        }
    }

    /// A of all experts in the scratch where PEFT took inputs for outputs, whose bytes it returns; a view of the factors elsewhere.
    fn swapped_a(&self, trace: &mut Trace, mixture: &Mixture<'_>, [inputs, rank]: [usize; 2]) -> u64 {
        if !mixture.experts.names.swapped {
            return 0;
        }
        let own = self.split_factors(mixture, inputs, rank);
        trace.hold(Scratch, own);
        if rank > 1 {
            trace.spike(Scratch, own);
        }
        own
    }

    /// A projection into `target`, the factors of its adapter split meanwhile.
    pub(super) fn expert_projection(
        &self,
        trace: &mut Trace,
        mixture: &Mixture<'_>,
        module: Module,
        ([outputs, inputs, rank], target): ([usize; 3], MemoryCategory),
    ) {
        let split = self.split_b(trace, mixture, module, [outputs, rank]);
        trace.hold(target, self.of_rows(mixture, outputs));
        self.project(trace, mixture, module, Form::Nt, [outputs, inputs, rank]);
        trace.free(Scratch, split);
    }

    /// Gate and up of the gathered rows, which go, and z of them.
    pub(super) fn expert_units(&self, trace: &mut Trace, mixture: &Mixture<'_>, kept: MemoryCategory) {
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        let rank = mixture.plan.gate_up_rank;
        self.expert_xa(trace, mixture, [hidden, rank], kept);
        for _ in 0..2 {
            self.expert_projection(trace, mixture, Module::GateUp, ([inner, hidden, rank], kept));
        }
        if mixture.experts.biases {
            self.add_of_experts(trace, mixture, (inner, self.c()), 1);
        }
        trace.free(Scratch, self.of_rows(mixture, hidden));
        self.scaled_glu(trace, mixture);
    }

    /// All but the last products: z, in the scratch, and what the shared expert's down reads, there too.
    pub(super) fn experts_inner(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let Some(mixture) = self.mixture(kind) else { return };
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        trace.hold(kept, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, hidden);
        self.route(trace, &mixture, kept);
        self.expert_inputs(trace, &mixture);
        self.expert_units(trace, &mixture, kept);
        if !kind.gate_up.projections.is_empty() {
            self.group_forward(trace, (&kind.gate_up, Module::GateUp), kept, Target::New(kept));
            trace.hold(Scratch, self.act(kind.inner()));
            self.pass(trace, Module::GateUp, Pass::GluForward, kind.inner());
            self.shared_scale(trace, &mixture.plan.shared_gate, kind, kept);
        }
        trace.free(Scratch, self.act(hidden));
    }

    /// The rows that experts read, into the scratch.
    pub(super) fn expert_inputs(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.of_rows(mixture, hidden));
        self.pass_rows(trace, mixture, Module::GateUp, Pass::Gather, hidden);
        if mixture.experts.weighs_input {
            self.scale_rows(trace, mixture, hidden);
        }
    }

    /// w act(gate) up into the scratch, or act(gate) up.
    pub(super) fn scaled_glu(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let inner = mixture.experts.intermediate_size;
        trace.hold(Scratch, self.of_rows(mixture, inner));
        self.pass_rows(trace, mixture, Module::GateUp, Pass::GluForward, inner);
        if !mixture.experts.weighs_input {
            let weights = self.row_weights(trace, mixture);
            self.scale_rows(trace, mixture, inner);
            trace.free(Scratch, weights);
        }
    }

    /// The weights of rows in the scratch where experts have factors of their own, whose bytes it returns; as the router gave them elsewhere.
    pub(super) fn row_weights(&self, trace: &mut Trace, mixture: &Mixture<'_>) -> u64 {
        if !mixture.experts.branches {
            return 0;
        }
        let weights = (4 * mixture.rows) as u64;
        trace.hold(Scratch, weights);
        self.add_of_experts(trace, mixture, (1, 4), 2);
        weights
    }

    /// Numbers of `width` bytes, `outputs` for each expert, added to rows of theirs in place; the CPU has lists of rows beside them.
    fn add_of_experts(&self, trace: &mut Trace, mixture: &Mixture<'_>, (outputs, width): (usize, u64), lists: usize) {
        let wide = (4 * mixture.experts.count * outputs) as u64;
        let copy = if width == 4 { 0 } else { wide };
        if self.is_on_gpu() {
            return trace.spike(Scratch, copy);
        }
        trace.spike(Scratch, wide + copy);
        trace.spike(Scratch, wide + (4 * lists * mixture.rows) as u64);
    }

    /// What biases of `outputs` outputs say of each row's weight, added to what is there: d_weights, in the scratch.
    fn add_bias_weight_gradients(&self, trace: &mut Trace, mixture: &Mixture<'_>, outputs: usize) {
        let wide = (4 * mixture.experts.count * outputs) as u64;
        let copy = if self.c() == 4 { 0 } else { wide };
        let rows = (4 * mixture.rows) as u64;
        if self.is_on_gpu() {
            trace.hold(Scratch, rows);
            trace.spike(Scratch, copy);
        } else {
            trace.spike(Scratch, rows + wide + copy);
            trace.hold(Scratch, rows);
            trace.spike(Scratch, rows + wide);
        }
        // The sum takes the place of both.
        trace.spike(Scratch, rows);
        trace.free(Scratch, rows);
    }

    fn scale_rows(&self, trace: &mut Trace, mixture: &Mixture<'_>, width: usize) {
        if !self.is_on_gpu() {
            trace.spike(Scratch, (4 * mixture.rows) as u64);
        }
        self.pass_rows(trace, mixture, Module::GateUp, Pass::Copy, width);
    }

    /// Logits of all experts, in F32, and what becomes of them.
    pub(super) fn route(&self, trace: &mut Trace, mixture: &Mixture<'_>, kept: MemoryCategory) {
        let count = mixture.experts.count;
        let wide = self.router_input(trace, mixture);
        let router = (&mixture.plan.router, Module::GateUp);
        self.exact().group_forward(trace, router, kept, Target::New(Scratch));
        trace.free(Scratch, wide);
        let chosen = mixture.experts.chosen;
        trace.hold(kept, self.wide(count + 3 * chosen) + self.offsets_bytes());
        let sorted = match self.is_on_gpu() {
            true => self.wide(2 * chosen) + (4 * mixture.rows.div_ceil(SORTED_AT_ONCE) * count) as u64,
            false => self.wide(chosen),
        };
        trace.spike(Scratch, sorted);
        self.pass(trace, Module::GateUp, Pass::Copy, count);
        trace.free(Scratch, self.wide(count));
    }

    /// The same micro-batch for routers, which multiply F32 whatever the rest does.
    fn exact(&self) -> Self {
        Self {
            precision: Precision::Fp32,
            is_exact: true,
            ..*self
        }
    }

    /// What the router reads, into the scratch; returns its bytes.
    fn router_input(&self, trace: &mut Trace, mixture: &Mixture<'_>) -> u64 {
        let hidden = self.plan.architecture.hidden_size;
        let copy = self.wide_copy(hidden);
        trace.hold(Scratch, copy);
        if !mixture.experts.branches {
            return copy;
        }
        trace.hold(Scratch, self.wide(hidden));
        trace.spike(Scratch, self.wide(1));
        self.pass(trace, Module::Norms, Pass::NormForward, hidden);
        trace.free(Scratch, copy);
        self.wide(hidden)
    }

    /// Bytes of an F32 copy of an activation; none where it is F32 already.
    pub(super) fn wide_copy(&self, width: usize) -> u64 {
        if self.c() == 4 { 0 } else { self.wide(width) }
    }

    /// The factor on the shared expert's inner values.
    fn shared_scale(&self, trace: &mut Trace, group: &GroupPlan, kind: &LayerPlan, kept: MemoryCategory) {
        if group.projections.is_empty() {
            return;
        }
        self.group_forward(trace, (group, Module::GateUp), kept, Target::New(Scratch));
        trace.hold(kept, self.wide(1));
        trace.spike(Scratch, self.wide(2) + self.wide_copy(1));
        self.pass(trace, Module::GateUp, Pass::Copy, kind.inner());
        trace.free(Scratch, self.act(1));
    }

    /// The stream behind the experts into the scratch; frees what the last products read.
    pub(super) fn experts_outer(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let Some(mixture) = self.mixture(kind) else { return };
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        let rank = mixture.plan.down_rank;
        self.expert_xa(trace, &mixture, [inner, rank], kept);
        self.expert_projection(trace, &mixture, Module::Down, ([hidden, inner, rank], Scratch));
        if mixture.experts.biases {
            self.add_of_experts(trace, &mixture, (hidden, self.c()), 2);
        }
        trace.free(Scratch, self.of_rows(&mixture, inner));
        trace.hold(Scratch, self.act(hidden));
        self.pass_rows(trace, &mixture, Module::Down, Pass::Add, hidden);
        trace.free(Scratch, self.of_rows(&mixture, hidden));
        if !kind.down.projections.is_empty() {
            self.group_forward(trace, (&kind.down, Module::Down), kept, Target::Sum(Scratch));
            trace.free(Scratch, self.act(hidden) + self.act(kind.inner()));
        }
    }

    /// What [`StepTracer::experts_outer`] keeps, without the output.
    pub(super) fn experts_outer_recompute(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let Some(mixture) = self.mixture(kind) else { return };
        let inner = mixture.experts.intermediate_size;
        self.expert_xa(trace, &mixture, [inner, mixture.plan.down_rank], kept);
        trace.free(Scratch, self.of_rows(&mixture, inner));
        if !kind.down.projections.is_empty() {
            self.adapter_products(trace, &kind.down, kept);
            trace.free(Scratch, self.act(kind.inner()));
        }
    }

    /// Backward through the experts: dy, in the scratch, becomes the gradient of the stream between attention and experts.
    pub(super) fn experts_backward(&self, trace: &mut Trace, kind: &LayerPlan, between: u64) {
        let Some(mixture) = self.mixture(kind) else { return };
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        self.expert_down_backward(trace, &mixture);
        let freed = [SavedTensor::ExpertUp, SavedTensor::ExpertDownXa];
        trace.free(SavedActivations, self.saved(kind, &freed));
        if between > 0 {
            self.attention_output_again(trace, kind);
        }
        let normed = self.normed(trace);
        self.expert_gate_up_backward(trace, &mixture);
        trace.free(Scratch, 2 * self.of_rows(&mixture, inner));
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::ExpertGateUpXa]));
        if mixture.experts.weighs_input {
            trace.hold(Scratch, (4 * mixture.rows) as u64);
            trace.spike(Scratch, self.of_rows(&mixture, hidden));
            self.pass_rows(trace, &mixture, Module::GateUp, Pass::Gather, hidden);
            self.pass_rows(trace, &mixture, Module::GateUp, Pass::Copy, hidden);
            self.scale_rows(trace, &mixture, hidden);
        }
        trace.hold(Scratch, self.act(hidden));
        self.pass_rows(trace, &mixture, Module::GateUp, Pass::Add, hidden);
        trace.free(Scratch, self.of_rows(&mixture, hidden));
        self.route_backward(trace, &mixture);
        if !kind.gate_up.projections.is_empty() {
            self.shared_backward(trace, &mixture, kind);
        }
        trace.free(Scratch, normed);
        self.norm_onto(trace);
        trace.free(Scratch, between);
        let freed = [
            SavedTensor::Between,
            SavedTensor::BetweenNorm,
            SavedTensor::Routing,
            SavedTensor::RouterXa,
        ];
        trace.free(SavedActivations, self.saved(kind, &freed) - between);
    }

    /// The gradients of gate, up and the weights into the scratch.
    pub(super) fn expert_down_backward(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        let (rank, rows) = (mixture.plan.down_rank, mixture.rows);
        let of_rows = |width| self.of_rows(mixture, width);
        let weights = self.row_weights(trace, mixture);
        trace.hold(Scratch, of_rows(hidden));
        self.pass_rows(trace, mixture, Module::Down, Pass::Gather, hidden);
        if rank > 0 {
            let split = self.split_b(trace, mixture, Module::Down, [hidden, rank]);
            trace.hold(Scratch, of_rows(rank));
            self.adapter_product(trace, mixture, Form::Nn, [rows, rank, hidden]);
            trace.free(Scratch, split);
            self.expert_b_gradient(trace, mixture, Module::Down, [hidden, rank]);
        }
        let own = self.swapped_a(trace, mixture, [inner, rank]);
        trace.hold(Scratch, of_rows(inner));
        self.project(trace, mixture, Module::Down, Form::Nn, [inner, hidden, rank]);
        trace.free(Scratch, own);
        trace.hold(Scratch, of_rows(inner));
        self.pass_rows(trace, mixture, Module::Down, Pass::GluForward, inner);
        let weighs_output = !mixture.experts.weighs_input;
        if weighs_output {
            trace.hold(Scratch, (4 * rows) as u64);
            if mixture.experts.biases {
                self.add_bias_weight_gradients(trace, mixture, hidden);
            }
            self.pass_rows(trace, mixture, Module::Down, Pass::Copy, inner);
            self.scale_rows(trace, mixture, inner);
        }
        if rank > 0 {
            self.expert_a_gradient(trace, mixture, [inner, rank]);
        }
        self.expert_weight_gradients(trace, mixture, [hidden, inner], 1);
        trace.free(Scratch, of_rows(inner) + of_rows(hidden) + of_rows(rank));
        if weighs_output {
            self.scale_rows(trace, mixture, inner);
        }
        self.unit_backward(trace, self.of_rows(mixture, inner), mixture.experts.limit.is_some());
        self.pass_rows(trace, mixture, Module::GateUp, Pass::GluBackward, inner);
        trace.free(Scratch, weights);
    }

    /// The gradients of gate and up, of so many bytes each, take the places of the gate and of the unit's gradient on a GPU; elsewhere, and of
    /// clamped units, they are new.
    fn unit_backward(&self, trace: &mut Trace, bytes: u64, is_clamped: bool) {
        if self.is_on_gpu() && !is_clamped {
            return trace.rename(SavedActivations, Scratch, bytes);
        }
        trace.hold(Scratch, 2 * bytes);
        trace.free(Scratch, bytes);
        trace.free(SavedActivations, bytes);
    }

    /// Where PEFT took inputs for outputs, into a tensor of its own first.
    fn expert_a_gradient(&self, trace: &mut Trace, mixture: &Mixture<'_>, [inputs, rank]: [usize; 2]) {
        let (own, sizes) = match mixture.experts.names.swapped {
            true => (4 * mixture.split(inputs, rank), [inputs, rank]),
            false => (0, [rank, inputs]),
        };
        trace.hold(Scratch, own);
        self.adapter_product(trace, mixture, Form::Tn, [sizes[0], sizes[1], mixture.rows]);
        trace.free(Scratch, own);
    }

    fn expert_b_gradient(&self, trace: &mut Trace, mixture: &Mixture<'_>, module: Module, [outputs, rank]: [usize; 2]) {
        let parts = 4 * mixture.split(outputs, rank);
        let (is_swapped, is_interleaved) = (mixture.experts.names.swapped, mixture.is_interleaved());
        let sizes = if is_swapped { [rank, outputs] } else { [outputs, rank] };
        trace.hold(Scratch, parts);
        self.adapter_product(trace, mixture, Form::Tn, [sizes[0], sizes[1], mixture.rows]);
        // The part of the gradient that it is added to is not one piece.
        if is_swapped || is_interleaved && module == Module::GateUp {
            trace.spike(Scratch, parts);
        }
        trace.free(Scratch, parts);
    }

    fn expert_weight_gradients(
        &self,
        trace: &mut Trace,
        mixture: &Mixture<'_>,
        [rows, columns]: [usize; 2],
        times: usize,
    ) {
        if mixture.plan.weights_train {
            for _ in 0..times {
                let call = self.call(Right::Dense, Form::Tn, [rows, columns, mixture.rows]);
                self.grouped(trace, mixture, Module::Down, Right::Dense, call);
            }
        }
    }

    /// The gradient of the gathered rows into the scratch.
    pub(super) fn expert_gate_up_backward(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let (hidden, inner) = (self.plan.architecture.hidden_size, mixture.experts.intermediate_size);
        let (rank, rows) = (mixture.plan.gate_up_rank, mixture.rows);
        let of_rows = |width| self.of_rows(mixture, width);
        if rank > 0 {
            let split: u64 = (0..2)
                .map(|_| self.split_b(trace, mixture, Module::GateUp, [inner, rank]))
                .sum();
            trace.hold(Scratch, of_rows(rank));
            let call = Call {
                longest_term: inner,
                ..self.call(Right::Adapter, Form::Nn, [rows, rank, 2 * inner])
            };
            self.grouped(trace, mixture, Module::Adapters, Right::Adapter, call);
            trace.free(Scratch, split);
            for _ in 0..2 {
                self.expert_b_gradient(trace, mixture, Module::GateUp, [inner, rank]);
            }
        }
        if rank > 0 || mixture.plan.weights_train {
            self.expert_inputs(trace, mixture);
            if rank > 0 {
                self.expert_a_gradient(trace, mixture, [hidden, rank]);
            }
            self.expert_weight_gradients(trace, mixture, [inner, hidden], 2);
            trace.free(Scratch, of_rows(hidden));
        }
        let own = self.swapped_a(trace, mixture, [hidden, rank]);
        trace.hold(Scratch, of_rows(hidden));
        let call = Call {
            adapter_depth: rank,
            longest_term: inner,
            ..self.call(Right::Weight, Form::Nn, [rows, hidden, 2 * inner])
        };
        self.grouped(trace, mixture, Module::GateUp, Right::Weight, call);
        trace.free(Scratch, of_rows(rank) + own);
    }

    /// Adds the router's part to the gradient of the normed input.
    fn route_backward(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let hidden = self.plan.architecture.hidden_size;
        self.routed_backward(trace, mixture);
        let narrow = if self.c() == 4 { 0 } else { self.act(hidden) };
        trace.hold(Scratch, narrow);
        trace.hold(Scratch, self.act(hidden));
        self.pass(trace, Module::GateUp, Pass::Add, hidden);
        trace.free(Scratch, narrow + self.wide(hidden) + self.act(hidden));
    }

    /// The gradient of what the router read, F32, into the scratch; frees that of the weights.
    pub(super) fn routed_backward(&self, trace: &mut Trace, mixture: &Mixture<'_>) {
        let (router, count) = ((&mixture.plan.router, Module::GateUp), mixture.experts.count);
        trace.hold(Scratch, self.wide(count));
        self.pass(trace, Module::GateUp, Pass::Copy, count);
        trace.free(Scratch, (4 * mixture.rows) as u64);
        let input = |trace: &mut Trace| self.router_input(trace, mixture);
        self.exact()
            .group_backward(trace, router, input, self.wide(count), true);
    }

    /// Adds the shared expert's part to the gradient of the normed input; frees what it kept.
    fn shared_backward(&self, trace: &mut Trace, mixture: &Mixture<'_>, kind: &LayerPlan) {
        self.shared_gradient(trace, mixture, kind);
        self.add_shared(trace);
    }

    /// The sum of two gradients of the normed input, in place of both.
    fn add_shared(&self, trace: &mut Trace) {
        let hidden = self.plan.architecture.hidden_size;
        trace.hold(Scratch, self.act(hidden));
        self.pass(trace, Module::GateUp, Pass::Add, hidden);
        trace.free(Scratch, self.act(2 * hidden));
    }

    /// The gradient of the normed input by way of the shared expert, into the scratch; frees what it kept.
    pub(super) fn shared_gradient(&self, trace: &mut Trace, mixture: &Mixture<'_>, kind: &LayerPlan) {
        let inner = kind.inner();
        let gate = &mixture.plan.shared_gate;
        let is_scaled = !gate.projections.is_empty();
        let again = |trace: &mut Trace| {
            trace.hold(Scratch, self.act(inner));
            self.pass(trace, Module::GateUp, Pass::GluForward, inner);
            if is_scaled && !self.is_on_gpu() {
                trace.spike(Scratch, self.wide(1));
            }
            self.act(inner)
        };
        self.group_backward(trace, (&kind.down, Module::Down), again, 0, true);
        let d_scale = if is_scaled { self.wide(1) } else { 0 };
        if is_scaled {
            trace.hold(Scratch, d_scale);
            trace.spike(Scratch, self.act(inner));
            trace.spike(Scratch, self.wide(2));
            self.pass(trace, Module::GateUp, Pass::GluForward, inner);
            (0..2).for_each(|_| self.pass(trace, Module::GateUp, Pass::Copy, inner));
        }
        self.unit_backward(trace, self.act(inner), false);
        self.pass(trace, Module::GateUp, Pass::GluBackward, inner);
        self.group_backward(trace, (&kind.gate_up, Module::GateUp), |_| 0, self.act(2 * inner), true);
        if is_scaled {
            let d_logit = if self.c() == 4 { 0 } else { self.act(1) };
            trace.hold(Scratch, d_logit);
            self.group_backward(trace, (gate, Module::GateUp), |_| 0, d_logit, true);
            self.add_shared(trace);
        }
        trace.free(Scratch, d_scale);
        let freed = [
            SavedTensor::Up,
            SavedTensor::GateUpXa,
            SavedTensor::DownXa,
            SavedTensor::SharedGate,
            SavedTensor::SharedGateXa,
        ];
        trace.free(SavedActivations, self.saved(kind, &freed));
    }
}
