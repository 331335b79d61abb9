//! A whole step: from the base weights to the update, with the memory by category and the list of ops.

mod head;

use std::cell::RefCell;

use super::data_sheet::LINK;
use super::error::PredictError;
use super::expert_load::ExpertLoad;
use super::group::Sharers;
use super::host::Host;
use super::memory_category::{Bytes, MemoryCategory};
use super::network::{Network, Slots};
use super::op::{Module, Op, Pass, Right, Stage, Work};
use super::optimizer_state::{gpu_update_bytes, state_bytes, update_bytes};
use super::segment::{Segment, StepModel};
use super::stream::StreamShape;
use super::trace::{Level, Trace};
use super::tracer::StepTracer;
use crate::plan::{
    Form, LayerKeep, Memory, ModelPlan, ShardedBytes, WeightBytes, alike_layers, base_bytes, gathers, layer_keep,
    linear_bytes,
};
use crate::recipe::{AdapterInit, Precision, Recipe, UpdateOrder};

/// Bytes of the objects of one adapted linear layer: names, views, map entries.
const ADAPTER_OBJECT_BYTES: u64 = 2_000;
/// Bytes of the objects of one decoder layer.
const LAYER_OBJECT_BYTES: u64 = 5_000;

/// Bytes of a token of a micro-batch as it waits for its step: id, target and position.
const PREPARED_TOKEN_BYTES: u64 = 4 + 8 + 4;

/// Layer inputs that a GPU holds while they are on their way to the host.
const UNDER_WAY: usize = 2;

/// A step of one recipe on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTrace<'a> {
    pub network: &'a Network,
    pub recipe: &'a Recipe,
    pub host: Host,
    /// What the step computes in: the recipe's precision, or F32 where its schedule says so.
    pub compute: Precision,
    pub sharers: Sharers,
}

impl<'a> StepTrace<'a> {
    /// The step's tracer on the micro-batch `stream`.
    fn tracer<'s>(&self, stream: &'s StreamShape) -> StepTracer<'s>
    where
        'a: 's,
    {
        StepTracer {
            stored: self.stored(self.recipe.adapter.is_none()),
            ..StepTracer::new(&self.network.plan, self.host, self.compute, stream)
        }
    }

    /// Bytes of an element of a dense weight: of one that trains, or of the base model's.
    fn stored(&self, trains: bool) -> u64 {
        match trains {
            true => 4,
            false => self.recipe.precision.compute_bytes(),
        }
    }

    /// Bytes by category at the highest moment of a step on the micro-batch `stream`, or of what comes before the first one.
    pub(super) fn bytes(&self, stream: &StreamShape) -> Bytes {
        let tracer = StepTracer {
            sharers: self.sharers,
            ..self.tracer(stream)
        };
        let trainings = self.sharers.trainings as u64;
        let own = trainings * self.own_objects(stream.tokens() as u64 / trainings);
        Self::bytes_of((&[*self], own), &tracer, &|segment| self.segment(&tracer, segment))
    }

    /// Bytes of a step of some trainings that share its passes, each on a micro-batch of its own, whose segments a model on paper traces.
    pub(super) fn bytes_on(trainings: &[(Self, &StreamShape)], model: &dyn StepModel) -> Result<Bytes, PredictError> {
        let Some((first, _)) = trainings.first() else {
            return Ok(Bytes::default());
        };
        let (traces, streams): (Vec<Self>, Vec<&StreamShape>) = trainings.iter().copied().unzip();
        let stream = StreamShape::end_to_end(&streams);
        let own = trainings
            .iter()
            .map(|(one, stream)| one.own_objects(stream.tokens() as u64));
        let own = own.sum();
        first.read_on(&stream, model, |tracer, segments| {
            Self::bytes_of((&traces, own), tracer, segments)
        })
    }

    /// The ops of a step whose segments a model on paper traces: those of one micro-batch, and those of the update.
    pub(super) fn ops_on(
        &self,
        stream: &StreamShape,
        model: &dyn StepModel,
    ) -> Result<(Vec<Op>, Vec<Op>), PredictError> {
        self.read_on(stream, model, |tracer, segments| self.ops_of(tracer, segments))
    }

    /// What `read` reads of the segments that a model on paper traces.
    fn read_on<T>(
        &self,
        stream: &StreamShape,
        model: &dyn StepModel,
        read: impl FnOnce(&StepTracer<'_>, &dyn Fn(Segment) -> Trace) -> T,
    ) -> Result<T, PredictError> {
        let tracer = self.tracer(stream);
        let refused = RefCell::new(None);
        let found = read(&tracer, &|segment| {
            model.trace(segment).unwrap_or_else(|reason| {
                refused.replace(Some(PredictError::OnPaper { segment, reason }));
                Trace::new(Stage::Forward)
            })
        });
        match refused.into_inner() {
            None => Ok(found),
            Some(error) => Err(error),
        }
    }

    /// Bytes of a step of some trainings from the traces of its segments; `own` are the bytes of their [`own_objects`](Self::own_objects).
    fn bytes_of(
        (trainings, own): (&[Self], u64),
        tracer: &StepTracer<'_>,
        segments: &dyn Fn(Segment) -> Trace,
    ) -> Bytes {
        let mut level = Level::default();
        let Some(first) = trainings.first() else {
            return Bytes::default();
        };
        first.hold_base(&mut level);
        trainings.iter().for_each(|one| one.hold_training(&mut level));
        first.hold_framework(&mut level, tracer.stream, own);
        let before = level.end_phase();
        let plans: Vec<&ModelPlan> = trainings.iter().map(|one| &one.network.plan).collect();
        first.trace(tracer, &LayerOrder::of(&plans), segments, |_, trace| {
            level.replay(trace)
        });
        level.replay(&segments(Segment::Update));
        let mut bytes = level.at_peak();
        let threads = first.host.threads as u64;
        bytes.add(MemoryCategory::Framework, level.scratch.bytes(threads));
        // Before the first step threads keep nothing.
        bytes.higher(before)
    }

    /// What an update takes and frees.
    fn update(&self) -> Trace {
        let mut update = Trace::new(Stage::Optimizer);
        let (kind, slots) = (self.recipe.optimizer.kind, &self.network.slots);
        let on_gpu = self.host.memory() == Memory::Device;
        if self.recipe.precision == Precision::Fp16 && !on_gpu {
            update.spike(MemoryCategory::Scratch, 4 * self.network.trained_elements());
        }
        let bytes = match (on_gpu, self.is_updated_on_host()) {
            (true, true) => 0,
            (true, false) => gpu_update_bytes(kind, slots),
            (false, _) => update_bytes(kind, slots),
        };
        update.spike(MemoryCategory::Scratch, bytes);
        update
    }

    /// Bytes that the forward pass keeps for the backward pass, in the host's memory or the device's.
    pub(super) fn saved_bytes(&self, stream: &StreamShape) -> u64 {
        let tracer = self.tracer(stream);
        let plan = &self.network.plan;
        let x = tracer.act(plan.architecture.hidden_size);
        let first = plan.first_on_tape();
        let of_layer = |index: usize| match self.keep(index, first) {
            LayerKeep::Saved => {
                let layer = plan.layer(index);
                x + tracer.saved_bytes(layer) - tracer.dropped_bytes(layer)
            }
            LayerKeep::Input | LayerKeep::HostInput => x,
            LayerKeep::Nothing => 0,
        };
        let shared = plan.layers.iter().map(|kind| tracer.shared_bytes(&plan.kinds[*kind]));
        let cross_layer = shared.sum::<u64>() + tracer.input_bytes();
        (0..plan.layers.len()).map(of_layer).sum::<u64>() + cross_layer + x + tracer.wide(1)
    }

    /// The ops of one micro-batch whose tokens lie on experts as `load` says, and those of the update.
    pub(super) fn ops(&self, stream: &StreamShape, load: ExpertLoad) -> (Vec<Op>, Vec<Op>) {
        let tracer = StepTracer {
            load,
            ..self.tracer(stream)
        };
        self.ops_of(&tracer, &|segment| self.segment(&tracer, segment))
    }

    /// The ops of a step from the traces of its segments.
    fn ops_of(&self, tracer: &StepTracer<'_>, segments: &dyn Fn(Segment) -> Trace) -> (Vec<Op>, Vec<Op>) {
        let mut pieces: Vec<(StepSegment, usize, f64)> = Vec::with_capacity(8);
        let mut ops: Vec<Op> = Vec::with_capacity(256);
        let order = LayerOrder::of(&[&self.network.plan]);
        self.trace(tracer, &order, segments, |piece, trace| {
            let known = pieces
                .iter_mut()
                .find(|(known, ..)| *known == piece && piece != StepSegment::Once);
            match known {
                Some((.., times)) => *times += 1.0,
                None => {
                    pieces.push((piece, ops.len(), 1.0));
                    ops.extend_from_slice(&trace.ops);
                }
            }
        });
        let ends: Vec<usize> = pieces
            .iter()
            .skip(1)
            .map(|(_, start, _)| *start)
            .chain([ops.len()])
            .collect();
        for ((_, start, times), end) in pieces.into_iter().zip(ends) {
            ops[start..end].iter_mut().for_each(|op| op.times *= times);
        }
        (ops, self.update_ops())
    }

    /// Copies that gather the layers' weights for one micro-batch where ranks share the host's memory: each writes its part, and reads
    /// all. On a GPU see [`StepTrace::link_seconds`].
    pub(super) fn gathers(&self) -> Option<Op> {
        let shared = ShardedBytes::of_recipe(&self.network.plan.architecture, self.recipe)?;
        if self.host.memory() == Memory::Device {
            return None;
        }
        let gathered = self.gathered();
        let bytes: u64 = gathered
            .iter()
            .map(|layer| 2 * shared.whole[*layer] - shared.received[*layer])
            .sum();
        let elements = bytes as f64 / self.compute.compute_bytes() as f64 / gathered.len().max(1) as f64;
        Some(Op {
            work: Work::Pass {
                pass: Pass::Copy,
                elements,
            },
            stage: Stage::Forward,
            times: gathered.len() as f64,
        })
    }

    /// Seconds in which the weights of one micro-batch come from other GPUs: through the stream that computes, so nothing hides them.
    pub(super) fn link_seconds(&self) -> f64 {
        let shared = ShardedBytes::of_recipe(&self.network.plan.architecture, self.recipe);
        let (Some(shared), Memory::Device) = (shared, self.host.memory()) else {
            return 0.0;
        };
        let bytes: u64 = self.gathered().iter().map(|layer| shared.received[*layer]).sum();
        bytes as f64 / LINK
    }

    /// Whether a GPU's host has the optimizer's states and updates.
    pub(super) fn is_updated_on_host(&self) -> bool {
        self.host.memory() == Memory::Device && !self.recipe.optimizer.offload.is_none()
    }

    /// The layers whose weights are gathered in a micro-batch.
    fn gathered(&self) -> Vec<usize> {
        let plan = &self.network.plan;
        gathers(plan.layers.len(), plan.first_on_tape())
    }

    /// What trainings on one base have of it before the step and after it.
    fn hold_base(&self, level: &mut Level) {
        let (architecture, recipe) = (&self.network.plan.architecture, self.recipe);
        let base = base_bytes(architecture, recipe.precision, recipe.weight_sparsity);
        match ShardedBytes::of_recipe(architecture, recipe) {
            Some(shared) => [shared.own, shared.windows].map(|bytes| hold_weights(level, bytes)),
            None => [base, WeightBytes::default()].map(|bytes| hold_weights(level, bytes)),
        };
    }

    /// What each training has of its own before the step and after it.
    fn hold_training(&self, level: &mut Level) {
        let Self {
            network, recipe, host, ..
        } = *self;
        let (plan, on_gpu) = (&network.plan, host.memory() == Memory::Device);
        let adapted = plan.adapter.iter().flat_map(|adapter| &adapter.linears);
        let base = base_bytes(&plan.architecture, recipe.precision, recipe.weight_sparsity);
        hold_weights(level, plan.aware_bytes());
        let elements = network.trained_elements();
        level.hold(MemoryCategory::Adapters, 4 * elements);
        if on_gpu && recipe.precision.compute_bytes() == 2 {
            // What products read.
            level.hold(MemoryCategory::Adapters, 2 * self.factor_elements() as u64);
        }
        level.hold(MemoryCategory::Gradients, 4 * elements);
        if recipe.precision_schedule.is_adaptive() {
            // Those of the step before.
            level.hold(MemoryCategory::Gradients, 4 * elements);
        }
        if recipe.adapter.is_none() {
            // The values are copied tensor by tensor; the weights that they came from are then let go of.
            if recipe.precision != Precision::Fp32 {
                let values = network.slots.iter().map(|slots| 4 * slots.elements());
                let largest = values.max().unwrap_or(0);
                level.hold(MemoryCategory::Scratch, largest);
                level.free(MemoryCategory::Scratch, largest);
            }
            level.free(MemoryCategory::BaseWeights, base.values);
        }
        if !(on_gpu && recipe.optimizer.kind.is_paged() || self.is_updated_on_host()) {
            level.hold(
                MemoryCategory::OptimizerState,
                state_bytes(&recipe.optimizer, &network.slots),
            );
        }
        for linear in adapted.clone().map(|one| &one.linear) {
            if plan
                .adapter
                .as_ref()
                .is_some_and(|adapter| adapter.settings.init == AdapterInit::Pissa)
            {
                let elements = (linear.inputs * linear.outputs) as u64;
                hold_weights(level, linear_bytes(elements, recipe.precision));
            }
            if plan.dora() {
                // Row norms of the weight, and norms and gains of the pass.
                level.hold(MemoryCategory::Adapters, 3 * 4 * linear.outputs as u64);
            }
        }
    }

    /// Objects, tables and rows that are there before the step and after it; `own` are bytes of those that trainings have of their own.
    fn hold_framework(&self, level: &mut Level, stream: &StreamShape, own: u64) {
        let plan = &self.network.plan;
        let rows = stream.longest().next_power_of_two();
        let ropes = plan.architecture.ropes.iter();
        let tables: usize = ropes
            .map(|rope| rope.tables() * 2 * 4 * (rows * rope.rotary_dims / 2).next_power_of_two())
            .sum();
        let shared = match self.sharers.trainings {
            1 => 0,
            _ => LAYER_OBJECT_BYTES * plan.layers.len() as u64,
        };
        let (tokens, targets) = (stream.tokens() as u64, stream.targets as u64);
        let rest = match self.host.memory() {
            // Ids, positions and bounds of documents, and four numbers for each target.
            Memory::Device => 4 * (4 * tokens + 4 * targets),
            Memory::Host => own + shared + 8 * tokens,
        };
        level.hold(MemoryCategory::Framework, tables as u64 + rest);
    }

    /// Elements of all factors of adapters.
    fn factor_elements(&self) -> usize {
        let adapted = self.network.plan.adapter.iter().flat_map(|adapter| &adapter.linears);
        adapted
            .map(|one| one.linear.count() * one.rank * (one.linear.inputs + one.linear.outputs))
            .sum()
    }

    /// Bytes of a training's layers and adapters, once more where layers that all go through have its adapters too, and of rows that
    /// wait, in micro-batches of `tokens` tokens at most.
    fn own_objects(&self, tokens: u64) -> u64 {
        let plan = &self.network.plan;
        let adapted = plan.adapter.iter().flat_map(|adapter| &adapter.linears).count() as u64;
        let forms = if self.sharers.trainings == 1 { 1 } else { 2 };
        let objects = forms * ADAPTER_OBJECT_BYTES * adapted + LAYER_OBJECT_BYTES * plan.layers.len() as u64;
        objects + self.prepared_bytes(tokens)
    }

    /// Rows of the step that is under way and of those that are ready ahead, whose micro-batches hold `tokens` tokens at most.
    fn prepared_bytes(&self, tokens: u64) -> u64 {
        let batch = &self.recipe.batch;
        let steps = batch.prefetch_depth as u64 + 1;
        let micro_batches = steps.saturating_mul(batch.micro_batches() as u64);
        // Lists grow by doubling.
        micro_batches.saturating_mul(PREPARED_TOKEN_BYTES * tokens.next_power_of_two())
    }

    /// A segment on the micro-batch `stream`, op by op.
    pub(super) fn traced(&self, stream: &StreamShape, segment: Segment) -> Trace {
        self.segment(&self.tracer(stream), segment)
    }

    fn segment(&self, tracer: &StepTracer<'_>, segment: Segment) -> Trace {
        let kind = |layer: usize| self.network.plan.layers[layer];
        match segment {
            Segment::Embed => self.embed(tracer),
            Segment::Forward { layer, keep } => self.forward(tracer, kind(layer), keep),
            Segment::Head => self.head(tracer),
            Segment::Backward { layer, keep, wants_dx } => self.backward(tracer, kind(layer), keep, wants_dx),
            Segment::EmbedBackward => tracer.inputs_backward(),
            Segment::Update => self.update(),
        }
    }

    /// Goes through one micro-batch forward and backward and hands every piece to `take`.
    fn trace(
        &self,
        tracer: &StepTracer<'_>,
        order: &LayerOrder,
        segments: &dyn Fn(Segment) -> Trace,
        mut take: impl FnMut(StepSegment, &Trace),
    ) {
        let plan = &self.network.plan;
        let LayerOrder { kinds, layers, first } = order;
        let (kinds, first) = (*kinds, *first);
        let any_of = |kind: usize| layers.iter().position(|other| *other == kind).unwrap_or(0);
        take(StepSegment::Once, &begun(tracer));
        take(StepSegment::Once, &segments(Segment::Embed));
        let forward = SegmentTraces::new(kinds, |kind, keep| {
            let layer = any_of(kind);
            segments(Segment::Forward { layer, keep })
        });
        for (index, kind) in layers.iter().enumerate() {
            let keep = self.keep(index, first);
            take(StepSegment::Forward(*kind, keep), forward.of(*kind, keep));
            if keep == LayerKeep::HostInput && index >= first + UNDER_WAY {
                take(StepSegment::Once, &self.gone_home(tracer, 1));
            }
        }
        let at_home = self.keep(first, first) == LayerKeep::HostInput && first < layers.len();
        if at_home {
            take(
                StepSegment::Once,
                &self.gone_home(tracer, UNDER_WAY.min(layers.len() - first)),
            );
        }
        take(StepSegment::Once, &segments(Segment::Head));
        if plan.inputs_train {
            let mut trace = Trace::new(Stage::Backward);
            trace.hold(MemoryCategory::Scratch, tracer.input_bytes());
            take(StepSegment::Once, &trace);
        }
        let of_backward = |kind: usize, keep: LayerKeep, wants_dx: bool| {
            let layer = any_of(kind);
            segments(Segment::Backward { layer, keep, wants_dx })
        };
        let backward = SegmentTraces::new(kinds, |kind, keep| of_backward(kind, keep, true));
        for index in (first..layers.len()).rev() {
            let (kind, keep) = (layers[index], self.keep(index, first));
            if at_home {
                // While a layer runs backward, the input of the one below it is on its way.
                let top = usize::from(index + 1 == layers.len());
                take(
                    StepSegment::Once,
                    &self.come_back(tracer, top + usize::from(index > first)),
                );
            }
            if index > first || plan.embedding_trains {
                take(StepSegment::Backward(kind, keep), backward.of(kind, keep));
            } else {
                take(StepSegment::Once, &of_backward(kind, keep, false));
            }
        }
        let mut end = Trace::new(Stage::Backward);
        let unread = plan.layers[..first]
            .iter()
            .map(|kind| tracer.shared_bytes(&plan.kinds[*kind]));
        end.free(MemoryCategory::SavedActivations, unread.sum());
        if plan.embedding_trains && plan.architecture.layer_inputs.is_none() {
            end.free(MemoryCategory::Scratch, tracer.act(plan.architecture.hidden_size));
        }
        take(StepSegment::Once, &end);
        if plan.architecture.layer_inputs.is_some() {
            take(StepSegment::Once, &segments(Segment::EmbedBackward));
        }
    }

    /// What is kept of a layer, where gradients reach down to layer `first`; its input leaves the device only where the device's memory is
    /// not the host's.
    fn keep(&self, index: usize, first: usize) -> LayerKeep {
        if index < first {
            return LayerKeep::Nothing;
        }
        match layer_keep(self.recipe.gradient_checkpointing, index) {
            LayerKeep::HostInput if self.host.memory() == Memory::Host => LayerKeep::Input,
            keep => keep,
        }
    }

    /// Layer inputs that have arrived in the host's memory.
    fn gone_home(&self, tracer: &StepTracer<'_>, inputs: usize) -> Trace {
        let mut trace = Trace::new(Stage::Forward);
        let x = tracer.act(self.network.plan.architecture.hidden_size);
        trace.free(MemoryCategory::SavedActivations, inputs as u64 * x);
        trace
    }

    /// Layer inputs on their way back.
    fn come_back(&self, tracer: &StepTracer<'_>, inputs: usize) -> Trace {
        let mut trace = Trace::new(Stage::Backward);
        let x = tracer.act(self.network.plan.architecture.hidden_size);
        trace.hold(MemoryCategory::SavedActivations, inputs as u64 * x);
        trace
    }

    fn embed(&self, tracer: &StepTracer<'_>) -> Trace {
        let hidden = self.network.plan.architecture.hidden_size;
        let mut trace = Trace::new(Stage::Forward);
        if tracer.is_on_gpu() && tracer.c() == 2 && self.network.plan.adapter.is_some() {
            // A launch rounds them.
            trace.run(Work::Pass {
                pass: Pass::Copy,
                elements: self.factor_elements() as f64,
            });
        }
        if self.network.plan.dora() {
            tracer.dora_factors(&mut trace);
        }
        tracer.merged_weights(&mut trace);
        // Rows of the table as it is stored, where the step computes in another precision.
        let stored = self.stored(self.network.plan.embedding_trains);
        let rows = match stored == tracer.c() {
            true => 0,
            false => (tracer.tokens * hidden) as u64 * stored,
        };
        trace.hold(MemoryCategory::Scratch, rows);
        trace.hold(MemoryCategory::Scratch, tracer.act(hidden));
        trace.free(MemoryCategory::Scratch, rows);
        tracer.pass(&mut trace, Module::Embedding, Pass::Gather, hidden);
        if self.network.plan.architecture.embedding_scale.is_some() {
            trace.spike(MemoryCategory::Scratch, tracer.act(hidden));
            tracer.pass(&mut trace, Module::Embedding, Pass::Copy, hidden);
        }
        tracer.make_inputs(&mut trace);
        trace
    }

    /// A layer forward: its input, in the scratch, is replaced by its output.
    fn forward(&self, tracer: &StepTracer<'_>, kind: usize, keep: LayerKeep) -> Trace {
        let (kind, x) = (
            &self.network.plan.kinds[kind],
            tracer.act(self.network.plan.architecture.hidden_size),
        );
        let mut trace = Trace::new(Stage::Forward);
        match keep {
            LayerKeep::Saved => {
                trace.rename(MemoryCategory::Scratch, MemoryCategory::SavedActivations, x);
                tracer.layer_forward(&mut trace, kind, MemoryCategory::SavedActivations);
                trace.free(MemoryCategory::SavedActivations, tracer.dropped_bytes(kind));
            }
            LayerKeep::Input | LayerKeep::HostInput | LayerKeep::Nothing => {
                if keep != LayerKeep::Nothing {
                    trace.rename(MemoryCategory::Scratch, MemoryCategory::SavedActivations, x);
                }
                tracer.layer_forward(&mut trace, kind, MemoryCategory::Scratch);
                let input = if keep == LayerKeep::Nothing { x } else { 0 };
                trace.free(MemoryCategory::Scratch, tracer.saved_bytes(kind) + input);
            }
        }
        trace
    }

    fn backward(&self, tracer: &StepTracer<'_>, kind: usize, keep: LayerKeep, wants_dx: bool) -> Trace {
        let kind = &self.network.plan.kinds[kind];
        let mut trace = Trace::new(Stage::Backward);
        trace.free(MemoryCategory::SavedActivations, tracer.shared_bytes(kind));
        if matches!(keep, LayerKeep::Input | LayerKeep::HostInput) {
            trace.stage = Stage::Recompute;
            tracer.layer_recompute(&mut trace, kind);
            trace.stage = Stage::Backward;
        }
        let dropped = match keep {
            LayerKeep::Saved => tracer.dropped_bytes(kind),
            _ => 0,
        };
        tracer.layer_backward(&mut trace, kind, wants_dx, dropped);
        trace
    }

    fn update_ops(&self) -> Vec<Op> {
        let slots = &self.network.slots;
        let mut ops = vec![update(Pass::Clip, self.network.trained_elements(), 1)];
        let all = |pass| vec![update(pass, self.network.trained_elements(), 1)];
        let kind = self.recipe.optimizer.kind;
        let pass = Pass::of_update(kind);
        ops.extend(match kind.row().update.order {
            UpdateOrder::AllAtOnce if kind.has_8bit_states() => coded(slots, pass, Pass::of_update(kind.rule())),
            UpdateOrder::AllAtOnce => all(pass),
            UpdateOrder::OneByOne => each(slots, pass),
            UpdateOrder::Orthogonalised => {
                let mut ops = all(pass);
                ops.extend(slots.iter().flat_map(muon_ops));
                ops
            }
        });
        ops
    }
}

/// What comes before the passes of a micro-batch.
fn begun(tracer: &StepTracer<'_>) -> Trace {
    let mut trace = Trace::new(Stage::Forward);
    tracer.pass(&mut trace, Module::Optimizer, Pass::Step, 1);
    trace
}

/// The layers of a step, in order.
struct LayerOrder {
    /// Numbers of [`alike_layers`].
    layers: Vec<usize>,
    kinds: usize,
    /// The lowest layer that a gradient must reach.
    first: usize,
}

impl LayerOrder {
    /// Of trainings with these plans, which share the passes.
    fn of(plans: &[&ModelPlan]) -> Self {
        let layers = alike_layers(plans);
        Self {
            kinds: layers.iter().max().map_or(0, |last| last + 1),
            first: plans
                .iter()
                .map(|plan| plan.first_on_tape())
                .min()
                .unwrap_or(layers.len()),
            layers,
        }
    }
}

fn hold_weights(level: &mut Level, bytes: WeightBytes) {
    level.hold(MemoryCategory::BaseWeights, bytes.values);
    level.hold(MemoryCategory::QuantizationConstants, bytes.constants);
}

fn update(pass: Pass, elements: u64, times: usize) -> Op {
    Op {
        stage: Stage::Optimizer,
        work: Work::Pass {
            pass,
            elements: elements as f64,
        },
        times: times as f64,
    }
}

/// A rule that takes one parameter after the other.
fn each(slots: &[Slots], pass: Pass) -> Vec<Op> {
    slots
        .iter()
        .map(|slots| update(pass, slots.elements(), slots.count))
        .collect()
}

/// A rule with 8-bit states, one parameter after the other; all that have F32 states together.
fn coded(slots: &[Slots], of_codes: Pass, of_f32: Pass) -> Vec<Op> {
    let (coded, plain): (Vec<Slots>, Vec<Slots>) = slots.iter().partition(|slots| slots.coded);
    let mut ops = each(&coded, of_codes);
    let elements: u64 = plain.iter().map(|slots| slots.elements() * slots.count as u64).sum();
    if elements > 0 {
        ops.push(update(of_f32, elements, 1));
    }
    ops
}

/// A segment of a step: the same segment computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepSegment {
    /// Comes once.
    Once,
    /// A layer of this kind, and what is kept of it.
    Forward(usize, LayerKeep),
    Backward(usize, LayerKeep),
}

/// The traces of each kind of layer under each way to keep it, made when they are first asked for.
struct SegmentTraces<F> {
    made: Vec<[std::cell::OnceCell<Trace>; 4]>,
    make: F,
}

impl<F: Fn(usize, LayerKeep) -> Trace> SegmentTraces<F> {
    fn new(kinds: usize, make: F) -> Self {
        let made = (0..kinds).map(|_| Default::default()).collect();
        Self { made, make }
    }

    fn of(&self, kind: usize, keep: LayerKeep) -> &Trace {
        self.made[kind][keep as usize].get_or_init(|| (self.make)(kind, keep))
    }
}

/// Five rounds of three products on each matrix.
fn muon_ops(slots: &Slots) -> Vec<Op> {
    let Some(columns) = slots.columns else {
        return Vec::new();
    };
    let (narrow, wide) = (slots.rows.min(columns) as f64, slots.rows.max(columns) as f64);
    let op = |work, times| Op {
        stage: Stage::Optimizer,
        work,
        times: times * slots.count as f64,
    };
    let product = |rows, columns, depth| {
        Work::Product(super::op::Product {
            module: Module::Optimizer,
            right: Right::Adapter,
            in_bytes: false,
            form: Form::Nn,
            rows,
            columns,
            depth,
            adapter_depth: 0.0,
            launches: 1.0,
        })
    };
    let copy = Work::Pass {
        pass: Pass::Copy,
        elements: narrow * wide,
    };
    vec![
        op(product(narrow, narrow, wide), 5.0),
        op(product(narrow, narrow, narrow), 5.0),
        op(product(narrow, wide, narrow), 5.0),
        op(copy, 40.0),
    ]
}
