//! Traces the engine's step and records it: products and linear groups here, whole layers in [`super::layer`].
//!
//! | letter | meaning |
//! |---|---|
//! | T | tokens of the micro-batch |
//! | H, I, Q, K | widths of the residual stream, the MLP, all queries, all keys |
//! | c | bytes of an element of the activations |
//!
//! Each function follows the function of the same name in the engine, allocation by allocation: what it holds and frees
//! here is what the engine holds and frees there, in that order.

use super::expert_load::ExpertLoad;
use super::group::Sharers;
use super::host::Host;
use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Product, Right, Work};
use super::stream::StreamShape;
use super::trace::Trace;
use crate::plan::products::{Call, MAX_TERMS, longer};
use crate::plan::{AdapterOnInput, Form, GroupPlan, LayerPlan, ModelPlan, ProjectionPlan, SavedTensor, Vectors};
use crate::recipe::Precision;

/// One micro-batch on its way through a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTracer<'a> {
    pub plan: &'a ModelPlan,
    pub host: Host,
    pub precision: Precision,
    pub stream: &'a StreamShape,
    pub tokens: usize,
    /// Bytes of an element of dense weights.
    pub stored: u64,
    /// How tokens lie on the experts of a mixture, where time is asked about.
    pub load: ExpertLoad,
    pub sharers: Sharers,
    /// Whether weights are F32 whatever the base model is.
    pub is_exact: bool,
}

/// Where the output of a projection goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    New(MemoryCategory),
    /// Likewise, but what is there is the sum of the residual stream and the output.
    Sum(MemoryCategory),
}

impl<'a> StepTracer<'a> {
    /// A trace of `stream` through a model.
    pub(super) fn new(plan: &'a ModelPlan, host: Host, precision: Precision, stream: &'a StreamShape) -> Self {
        Self {
            plan,
            host,
            precision,
            stream,
            tokens: stream.tokens().round() as usize,
            stored: precision.compute_bytes(),
            load: ExpertLoad::default(),
            sharers: Sharers::ALONE,
            is_exact: false,
        }
    }

    /// Bytes of an element of the activations.
    pub(super) fn c(&self) -> u64 {
        self.precision.compute_bytes()
    }

    /// Whether activations are BF16.
    pub(super) fn is_bf16(&self) -> bool {
        self.c() == 2 && self.precision != Precision::Fp16
    }

    /// Whether attention's products run on pairs of BF16.
    pub(super) fn multiplies_pairs(&self) -> bool {
        self.is_bf16() && self.host.vectors.multiplies_pairs()
    }

    /// Bytes of an activation of `width` for every token.
    pub(super) fn act(&self, width: usize) -> u64 {
        (self.tokens * width) as u64 * self.c()
    }

    /// Bytes of `width` F32 values for every token.
    pub(super) fn wide(&self, width: usize) -> u64 {
        (4 * self.tokens * width) as u64
    }

    /// Bytes of some of the tensors that a layer keeps.
    pub(super) fn saved(&self, layer: &LayerPlan, tensors: &[SavedTensor]) -> u64 {
        let bytes = |tensor: &SavedTensor| {
            let [width, wide] = tensor.widths(self.plan, layer);
            let offsets = if *tensor == SavedTensor::Routing {
                self.offsets_bytes()
            } else {
                0
            };
            self.act(width) + self.wide(wide) + if wide > 0 { offsets } else { 0 }
        };
        tensors.iter().map(bytes).sum()
    }

    /// Whether the step is a GPU's.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.host.vectors == Vectors::None
    }

    /// Records an op that passes over memory, `width` elements for every token. Its module counts nowhere.
    pub(super) fn pass(&self, trace: &mut Trace, _: Module, pass: Pass, width: usize) {
        let elements = self.tokens as f64 * width as f64;
        trace.run(Work::Pass { pass, elements });
    }

    /// A product of activations with a result in the compute dtype, or in F32 where it is a gradient.
    pub(super) fn call(&self, right: Right, form: Form, sizes: [usize; 3]) -> Call {
        Call {
            quantized: right == Right::Weight && !self.is_exact && (self.expands_weights() || self.is_aware()),
            in_bytes: right == Right::Weight && !self.is_exact && self.is_in_bytes(form),
            converted: match right == Right::Weight && self.converts(false) {
                true => sizes[1] * sizes[2],
                false => 0,
            },
            ..Call::dense(form, sizes, self.c(), self.is_bf16())
        }
    }

    /// A product with a projection's weight, which is never quantized where it trains.
    fn weight_call(&self, projection: &ProjectionPlan, form: Form, sizes: [usize; 3]) -> Call {
        let call = self.call(Right::Weight, form, sizes);
        Call {
            quantized: call.quantized && !projection.weight_trains,
            in_bytes: call.in_bytes && !projection.weight_trains,
            ..call
        }
    }

    /// Whether a GPU converts a dense weight before each of its products: one that trains beside an adapter, or the base model's.
    fn converts(&self, trains: bool) -> bool {
        let stored = if trains { 4 } else { self.stored };
        self.is_on_gpu() && stored != self.c() && (trains || !self.precision.is_quantized())
    }

    /// Elements of a projection's weight that a GPU converts.
    fn converted(&self, group: &GroupPlan, projection: &ProjectionPlan) -> usize {
        match self.converts(projection.weight_trains) {
            true => projection.outputs() * group.inputs,
            false => 0,
        }
    }

    /// Whether base weights lie in another form than products read.
    fn expands_weights(&self) -> bool {
        self.precision.is_quantized() || !self.plan.weight_sparsity.is_none()
    }

    /// Whether products of base weights take their activations in 8 bits.
    fn is_in_bytes(&self, form: Form) -> bool {
        let row = self.plan.activation_quantization.row();
        match form {
            Form::Nt => row.forward,
            Form::Nn => row.backward,
            Form::Tn => false,
        }
    }

    /// Records a product whose result is held already.
    pub(super) fn product(&self, trace: &mut Trace, module: Module, right: Right, call: Call) {
        self.product_by(trace, module, right, call, right == Right::Weight);
    }

    /// As [`StepTracer::product`]. Where trainings share it `by_rows`, those of each are multiplied by themselves, but for what a portable
    /// product widens at once.
    fn product_by(&self, trace: &mut Trace, module: Module, right: Right, call: Call, by_rows: bool) {
        let of_one = match by_rows && self.host.vectors != Vectors::Other {
            true => Call {
                rows: call.rows.div_ceil(self.sharers.trainings),
                ..call
            },
            false => call,
        };
        of_one.keep(&mut trace.scratch, self.host.vectors, self.host.threads);
        trace.spike(MemoryCategory::Scratch, of_one.spike(self.host.vectors));
        if self.is_on_gpu() {
            call.keep_on_gpu(&mut trace.scratch);
        }
        let right = if self.is_exact { Right::Adapter } else { right };
        trace.run(Work::Product(Product::new(&call, module, right)));
    }

    /// A product of activations (T, depth) with a result in the compute dtype.
    pub(super) fn linear(
        &self,
        trace: &mut Trace,
        module: Module,
        right: Right,
        form: Form,
        [columns, depth, adapter_depth]: [usize; 3],
    ) {
        let call = self.call(right, form, [self.rows_of(module), columns, depth]);
        self.product(trace, module, right, Call { adapter_depth, ..call });
    }

    /// += a^T b for a gradient of (rows, columns).
    pub(super) fn gradient(&self, trace: &mut Trace, module: Module, rows: usize, columns: usize) {
        let call = self.call(Right::Dense, Form::Tn, [rows, columns, self.rows_of(module)]);
        self.product(trace, module, Right::Dense, call);
    }

    /// Rows of an op: adapters see those of their own training.
    fn rows_of(&self, module: Module) -> usize {
        match module {
            Module::Adapters => self.tokens.div_ceil(self.sharers.trainings),
            _ => self.tokens,
        }
    }

    fn is_stacked(&self, group: &GroupPlan) -> bool {
        group.adapters.len() > 1 && !self.plan.dropout()
    }

    /// Outputs of a group, xa of its adapters into `kept`.
    pub(super) fn group_forward(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        kept: MemoryCategory,
        target: Target,
    ) {
        self.adapter_products(trace, group, kept);
        let room = match target {
            Target::New(_) => self.longer_outputs(trace, group),
            Target::Sum(_) => 0,
        };
        trace.hold(MemoryCategory::Scratch, room);
        for projection in &group.projections {
            self.projection_forward(trace, (group, module), projection, target);
        }
        trace.free(MemoryCategory::Scratch, room);
    }

    /// Bytes of the input beside xa, where sums of a group's outputs may be longer by the ranks; 0 where they are not. A GPU may find
    /// another way to be faster, and holds the same then.
    fn longer_outputs(&self, trace: &mut Trace, group: &GroupPlan) -> u64 {
        let (ranks, adapted) = (group.ranks(), |one: &ProjectionPlan| {
            one.adapter.is_some() && !one.weight_trains
        });
        let fits = longer::takes([self.tokens, group.outputs(), group.inputs], ranks);
        if !self.may_be_longer(Form::Nt) || self.plan.dora() || !fits || !group.projections.iter().all(adapted) {
            return 0;
        }
        let row = longer::row(group.inputs, ranks);
        for projection in &group.projections {
            trace.scratch.dequantize(projection.outputs() * row, self.c());
        }
        self.act(row)
    }

    /// As [`StepTracer::longer_outputs`], of the gradient beside d_xa for a group's dx.
    fn longer_gradient(&self, trace: &mut Trace, group: &GroupPlan) -> u64 {
        let ([projection], [adapter]) = (group.projections.as_slice(), group.adapters.as_slice()) else {
            return 0;
        };
        let (outputs, ranks) = (projection.outputs(), adapter.rank);
        let fits = longer::takes([self.tokens, group.inputs, outputs], ranks);
        if !self.may_be_longer(Form::Nn) || !fits || projection.adapter.is_none() || projection.weight_trains {
            return 0;
        }
        let elements = longer::depth(outputs, ranks) * group.inputs;
        trace.scratch.dequantize(elements, self.c());
        self.act(longer::row(outputs, ranks))
    }

    /// Whether sums may take adapters' products along: a GPU dequantizes the weights to 16 bits, and adapters see what the weights see.
    fn may_be_longer(&self, form: Form) -> bool {
        let is_widened = self.is_on_gpu() && self.precision.is_quantized() && !self.is_in_bytes(form);
        let is_alone = self.sharers.trainings == 1;
        is_widened && is_alone && self.c() == 2 && !self.plan.dropout()
    }

    /// A group's output, or the sum of it and the residual stream, made again from xa of its adapters.
    pub(super) fn group_output_again(&self, trace: &mut Trace, (group, module): (&GroupPlan, Module), target: Target) {
        for projection in &group.projections {
            self.projection_forward(trace, (group, module), projection, target);
        }
    }

    /// xa of the group's adapters into `kept`.
    pub(super) fn adapter_products(&self, trace: &mut Trace, group: &GroupPlan, kept: MemoryCategory) {
        let all: usize = group.ranks();
        if self.is_stacked(group) {
            // Each adapter's part is columns of it.
            trace.hold(kept, self.act(all));
            let columns = [all, group.inputs, 0];
            self.linear(trace, Module::Adapters, Right::Adapter, Form::Nt, columns);
            return;
        }
        for AdapterOnInput { rank, .. } in &group.adapters {
            let dropped = self.dropped(trace, group.inputs);
            trace.hold(kept, self.act(*rank));
            self.linear(
                trace,
                Module::Adapters,
                Right::Adapter,
                Form::Nt,
                [*rank, group.inputs, 0],
            );
            trace.free(MemoryCategory::Scratch, dropped);
        }
    }

    /// A dropped copy of an input, where there is dropout; returns the bytes that it holds.
    pub(super) fn dropped(&self, trace: &mut Trace, width: usize) -> u64 {
        if !self.plan.dropout() {
            return 0;
        }
        let bytes = self.act(width) / self.sharers.trainings as u64;
        trace.hold(MemoryCategory::Scratch, bytes);
        self.pass(trace, Module::Adapters, Pass::Dropout, width);
        bytes
    }

    fn projection_forward(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        projection: &ProjectionPlan,
        target: Target,
    ) {
        let (width, rank) = (projection.outputs(), group.rank_of(projection));
        let (Target::New(outputs) | Target::Sum(outputs)) = target;
        let y = self.act(width);
        if rank > 0 && self.plan.dora() {
            self.turned(trace, (group, module), projection);
            match target {
                Target::New(_) => trace.rename(MemoryCategory::Scratch, outputs, y),
                Target::Sum(_) => {
                    trace.hold(outputs, y);
                    self.pass(trace, module, Pass::Add, width);
                    trace.free(MemoryCategory::Scratch, y);
                }
            }
        } else {
            trace.hold(outputs, y);
            self.adapted(trace, (group, module), projection);
        }
        let biases = usize::from(rank > 0 && self.plan.lora_bias()) + usize::from(projection.bias);
        (0..biases).for_each(|_| self.pass(trace, module, Pass::Bias, width));
    }

    /// x W^T with the adapter's product in the same pass.
    pub(super) fn adapted(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        projection: &ProjectionPlan,
    ) {
        let rank = group.rank_of(projection);
        // A merged weight has its adapter in it.
        let rank = if self.is_aware() { 0 } else { rank };
        let is_part = rank > 0 && self.is_stacked(group);
        let call = Call {
            adapter_depth: rank,
            beside: if is_part { group.ranks() - rank } else { 0 },
            converted: self.converted(group, projection),
            ..self.weight_call(projection, Form::Nt, [self.tokens, projection.outputs(), group.inputs])
        };
        self.product(trace, module, Right::Weight, call);
    }

    /// Gradients of all that trains in a group, and dx into the scratch where it is wanted. `input` holds the group's
    /// input in the scratch again and returns its bytes; `dys` are the bytes of the output gradients, freed at the end.
    pub(super) fn group_backward(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        input: impl FnOnce(&mut Trace) -> u64,
        dys: u64,
        wants_dx: bool,
    ) {
        if !group.reads_input() {
            for projection in group.projections.iter().filter(|one| one.bias_trains) {
                self.bias_gradient(trace, module, projection.outputs());
            }
            if wants_dx {
                trace.hold(MemoryCategory::Scratch, self.act(group.inputs));
                self.gradients_sum(trace, (group, module), 0);
            }
            trace.free(MemoryCategory::Scratch, dys);
            return;
        }
        let (mut held, input) = (dys, input(trace));
        for projection in &group.projections {
            held += self.projection_backward(trace, (group, module), projection);
            // DoRA passes on a gradient of its own; that of the output goes, where nothing else holds it.
            if dys > 0 && projection.adapter.is_some() && self.plan.dora() && !self.plan.dropout() {
                trace.free(MemoryCategory::Scratch, self.act(projection.outputs()));
                held -= self.act(projection.outputs());
            }
        }
        held += self.adapter_gradients(trace, group);
        trace.free(MemoryCategory::Scratch, input);
        if wants_dx {
            self.input_gradient(trace, group, module);
        }
        trace.free(MemoryCategory::Scratch, held);
    }

    /// Returns the bytes that it leaves in the scratch.
    fn projection_backward(
        &self,
        trace: &mut Trace,
        (group, module): (&GroupPlan, Module),
        projection: &ProjectionPlan,
    ) -> u64 {
        let (width, rank) = (projection.outputs(), group.rank_of(projection));
        if projection.bias_trains {
            self.bias_gradient(trace, module, width);
        }
        let held = match rank > 0 && self.plan.dora() {
            true => self.backward_turned(trace, group, projection),
            false => 0,
        };
        if rank > 0 && self.plan.lora_bias() {
            self.bias_gradient(trace, Module::Adapters, width);
        }
        if projection.weight_trains {
            self.gradient(trace, module, width, group.inputs);
        }
        held
    }

    /// The sum over the tokens of an output's gradient, and that with what was there before. An adapter's is multiplied with its scaling.
    fn bias_gradient(&self, trace: &mut Trace, module: Module, width: usize) {
        let of_one = if module == Module::Adapters {
            self.sharers.trainings
        } else {
            1
        };
        let widened = if self.c() == 4 {
            0
        } else {
            self.wide(width) / of_one as u64
        };
        let sum = 4 * width as u64;
        trace.spike(MemoryCategory::Scratch, widened + sum);
        let sums = if module == Module::Adapters { 3 } else { 2 };
        trace.spike(MemoryCategory::Scratch, sums * sum);
        self.pass(trace, module, Pass::Copy, width);
    }

    /// The gradients of B, d_xa and the gradients of A; returns the bytes of d_xa, which stay in the scratch.
    fn adapter_gradients(&self, trace: &mut Trace, group: &GroupPlan) -> u64 {
        let all: usize = group.ranks();
        for projection in group.projections.iter().filter(|one| one.adapter.is_some()) {
            self.gradient(trace, Module::Adapters, projection.outputs(), group.rank_of(projection));
        }
        trace.hold(MemoryCategory::Scratch, self.act(all));
        for (index, AdapterOnInput { rank, .. }) in group.adapters.iter().enumerate() {
            let reads = |projection: &&ProjectionPlan| projection.adapter == Some(index);
            let readers = group.projections.iter().filter(reads).map(ProjectionPlan::outputs);
            let (outputs, longest) = (readers.clone().sum(), readers.max().unwrap_or(0));
            let call = Call {
                longest_term: longest,
                ..self.call(
                    Right::Adapter,
                    Form::Nn,
                    [self.rows_of(Module::Adapters), *rank, outputs],
                )
            };
            self.product(trace, Module::Adapters, Right::Adapter, call);
        }
        if self.is_stacked(group) {
            self.gradient(trace, Module::Adapters, all, group.inputs);
            return self.act(all);
        }
        for AdapterOnInput { rank, .. } in &group.adapters {
            let dropped = self.dropped(trace, group.inputs);
            self.gradient(trace, Module::Adapters, *rank, group.inputs);
            trace.free(MemoryCategory::Scratch, dropped);
        }
        self.act(all)
    }

    /// The sum of dy W over a group's projections, with that of its adapters.
    fn gradients_sum(&self, trace: &mut Trace, (group, module): (&GroupPlan, Module), adapter_depth: usize) {
        let Some(first) = group.projections.first() else { return };
        let projections = || group.projections.iter();
        let longest = projections().map(ProjectionPlan::outputs).max();
        let converted = projections().map(|projection| self.converted(group, projection));
        let call = Call {
            longest_term: longest.unwrap_or(0),
            adapter_depth,
            converted: converted.max().unwrap_or(0),
            ..self.weight_call(first, Form::Nn, [self.tokens, group.inputs, group.outputs()])
        };
        let by_rows = self.sharers.adapts_all || group.reads_input();
        self.product_by(trace, module, Right::Weight, call, by_rows);
    }

    /// dx of a group into the scratch.
    fn input_gradient(&self, trace: &mut Trace, group: &GroupPlan, module: Module) {
        let (dx, all): (u64, usize) = match self.is_aware() {
            true => (self.act(group.inputs), 0),
            false => (self.act(group.inputs), group.ranks()),
        };
        let with_dropout = self.plan.dropout();
        // The adapters' part is one term of the sum, or has a pass of its own where there are too many.
        let is_in_sum = all > 0 && !with_dropout && group.projections.len() < MAX_TERMS;
        trace.hold(MemoryCategory::Scratch, dx);
        let room = self.longer_gradient(trace, group);
        trace.hold(MemoryCategory::Scratch, room);
        self.gradients_sum(trace, (group, module), if is_in_sum { all } else { 0 });
        trace.free(MemoryCategory::Scratch, room);
        if all > 0 && !with_dropout && !is_in_sum {
            // Each training adds those of its rows.
            let part = dx / self.sharers.trainings as u64;
            trace.hold(MemoryCategory::Scratch, part);
            self.linear(
                trace,
                Module::Adapters,
                Right::Adapter,
                Form::Nn,
                [group.inputs, all, 0],
            );
            trace.spike(MemoryCategory::Scratch, part);
            self.pass(trace, module, Pass::Add, group.inputs);
            trace.free(MemoryCategory::Scratch, part);
        }
        if !with_dropout {
            return;
        }
        if self.plan.dora() {
            for projection in group
                .projections
                .iter()
                .filter(|projection| projection.adapter.is_some())
            {
                trace.hold(MemoryCategory::Scratch, dx);
                let columns = [group.inputs, projection.outputs(), 0];
                self.linear(trace, Module::Adapters, Right::Weight, Form::Nn, columns);
                trace.spike(MemoryCategory::Scratch, 2 * dx);
                trace.free(MemoryCategory::Scratch, dx);
                self.pass(trace, Module::Adapters, Pass::Dropout, group.inputs);
                self.pass(trace, Module::Adapters, Pass::Add, group.inputs);
            }
        }
        for AdapterOnInput { rank, .. } in &group.adapters {
            trace.spike(MemoryCategory::Scratch, 3 * dx / self.sharers.trainings as u64);
            self.linear(
                trace,
                Module::Adapters,
                Right::Adapter,
                Form::Nn,
                [group.inputs, *rank, 0],
            );
            self.pass(trace, Module::Adapters, Pass::Dropout, group.inputs);
            self.pass(trace, Module::Adapters, Pass::Add, group.inputs);
        }
    }
}
