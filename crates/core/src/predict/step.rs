//! A whole step: from the base weights to the update, with the memory by category and the list of ops.

use super::error::PredictError;
use super::host::Host;
use super::link::Link;
use super::memory_category::{Bytes, MemoryCategory};
use super::network::{Network, Slots};
use super::op::{Module, Op, Pass, Right, Stage, Work};
use super::optimizer_state::state_bytes;
use super::segment::{Segment, StepModel};
use super::step_ops::{StepOps, StepPart};
use super::stream::StreamShape;
use super::trace::{Level, Trace};
use crate::plan::{
    Form, KeySharing, LayerKeep, LayerPlan, Memory, ModelPlan, ShardedBytes, WeightBytes, alike_layers, first_like,
    gathers, layer_keep, linear_bytes,
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

/// A step of one recipe on one device, on a micro-batch of a shape, whose segments a model traces.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTrace<'a> {
    pub network: &'a Network,
    pub recipe: &'a Recipe,
    pub host: Host,
    /// Link to the other devices; `None` where they are this host's memory, or nothing is known of it.
    pub link: Option<Link>,
    pub stream: &'a StreamShape,
    /// Precision that the step computes in: the recipe's, or F32 where its schedule says so.
    pub compute: Precision,
    /// Trainings that share the passes, this one among them.
    pub trainings: usize,
}

impl StepTrace<'_> {
    /// Bytes by category at the highest moment of a step of `trainings`, which share its passes, or of what comes before the first step.
    /// The micro-batch of the passes is those of all trainings end to end.
    pub(super) fn bytes(trainings: &[Self], traces: &mut SegmentTraces<'_>) -> Result<Bytes, PredictError> {
        let Some(first) = trainings.first() else {
            return Ok(Bytes::default());
        };
        let streams: Vec<&StreamShape> = trainings.iter().map(|one| one.stream).collect();
        let stream = StreamShape::end_to_end(&streams);
        let whole = StepTrace {
            stream: &stream,
            ..*first
        };
        let mut level = Level::default();
        first.hold_base(&mut level);
        trainings.iter().for_each(|one| one.hold_training(&mut level));
        let own = trainings.iter().map(Self::own_objects).sum();
        whole.hold_framework(&mut level, own);
        let before = level.end_phase();
        let plans: Vec<&ModelPlan> = trainings.iter().map(|one| &one.network.plan).collect();
        whole.passes(&LayerOrder::of(&plans), traces, |_, trace| level.replay(trace))?;
        level.replay(traces.get(Segment::Update)?);
        debug_assert_eq!(level.left_of_passes(), [0; 4], "bytes that a step leaves");
        let mut bytes = level.at_peak();
        let threads = first.host.threads as u64;
        bytes.add(MemoryCategory::Framework, level.scratch.bytes(threads));
        // Before the first step threads keep nothing.
        Ok(bytes.higher(before))
    }

    /// Bytes that the forward pass keeps for the backward pass, in the host's memory or the device's.
    pub(super) fn saved_bytes(&self, traces: &mut SegmentTraces<'_>) -> Result<u64, PredictError> {
        let order = LayerOrder::of(&[&self.network.plan]);
        let mut kept = traces.get(Segment::Embed)?.change(MemoryCategory::SavedActivations);
        for index in 0..order.layers.len() {
            let trace = traces.get(self.forward_of(&order, index))?;
            kept += trace.change(MemoryCategory::SavedActivations);
        }
        // What the last norm reads, and a number for each of its rows.
        let head = self.act(self.network.plan.architecture.hidden_size) + 4 * self.tokens();
        Ok(kept.cast_unsigned() + head)
    }

    /// The ops of one micro-batch, and those of the update.
    pub(super) fn ops(&self, traces: &mut SegmentTraces<'_>) -> Result<(StepOps, Vec<Op>), PredictError> {
        Ok((self.passes_of(std::slice::from_ref(self), traces)?, self.update_ops()))
    }

    /// The ops of a micro-batch of `trainings`, which share this pass.
    pub(super) fn passes_of(
        &self,
        trainings: &[Self],
        traces: &mut SegmentTraces<'_>,
    ) -> Result<StepOps, PredictError> {
        let plans: Vec<&ModelPlan> = trainings.iter().map(|one| &one.network.plan).collect();
        let mut counts: Vec<(Segment, f64)> = Vec::with_capacity(8);
        self.passes(&LayerOrder::of(&plans), traces, |segment, _| {
            let Some(segment) = segment else { return };
            match counts.iter_mut().find(|(known, _)| *known == segment) {
                Some((_, times)) => *times += 1.0,
                None => counts.push((segment, 1.0)),
            }
        })?;
        let begun = Op {
            stage: Stage::Forward,
            work: Work::Pass {
                pass: Pass::Step,
                elements: self.tokens() as f64,
            },
            times: 1.0,
        };
        let mut ops = StepOps::default();
        ops.push(StepPart::Begin, 1.0, [begun]);
        for (segment, times) in counts {
            let of_one = traces.get(segment)?.ops.iter().cloned();
            ops.push(StepPart::Segment(segment), times, of_one);
        }
        Ok(ops)
    }

    /// Tokens of the micro-batch.
    fn tokens(&self) -> u64 {
        self.stream.tokens().round() as u64
    }

    /// Bytes of an activation of `width` for every token.
    fn act(&self, width: usize) -> u64 {
        self.tokens() * width as u64 * self.compute.compute_bytes()
    }

    /// Goes through one micro-batch forward and backward and hands the trace of every segment to `take`, and what happens between them.
    fn passes(
        &self,
        order: &LayerOrder,
        traces: &mut SegmentTraces<'_>,
        mut take: impl FnMut(Option<Segment>, &Trace),
    ) -> Result<(), PredictError> {
        let plan = &self.network.plan;
        let LayerOrder { layers, first, .. } = order;
        let first = *first;
        for index in 0..layers.len() {
            let layer = first_like(&order.layers, index);
            traces.take(Segment::Refresh { layer }, &mut take)?;
        }
        traces.take(Segment::Embed, &mut take)?;
        for index in 0..layers.len() {
            traces.take(self.forward_of(order, index), &mut take)?;
            if self.keep(index, first) == LayerKeep::HostInput && index >= first + UNDER_WAY {
                take(None, &self.gone_home(1));
            }
        }
        let at_home = self.keep(first, first) == LayerKeep::HostInput && first < layers.len();
        if at_home {
            take(None, &self.gone_home(UNDER_WAY.min(layers.len() - first)));
        }
        traces.take(Segment::Head, &mut take)?;
        if plan.inputs_train {
            let mut trace = Trace::new(Stage::Backward);
            trace.hold(MemoryCategory::Scratch, self.input_bytes());
            take(None, &trace);
        }
        for index in (first..layers.len()).rev() {
            if at_home {
                // While a layer runs backward, the input of the one below it is on its way.
                let top = usize::from(index + 1 == layers.len());
                take(None, &self.come_back(top + usize::from(index > first)));
            }
            let backward = Segment::Backward {
                layer: first_like(&order.layers, index),
                keep: self.keep(index, first),
                wants_dx: index > first || plan.embedding_trains,
            };
            traces.take(backward, &mut take)?;
        }
        let mut end = Trace::new(Stage::Backward);
        let unread = plan.layers[..first]
            .iter()
            .map(|kind| self.shared_bytes(&plan.kinds[*kind]));
        end.free(MemoryCategory::SavedActivations, unread.sum());
        take(None, &end);
        match plan.embedding_trains || plan.architecture.layer_inputs.is_some() {
            true => traces.take(Segment::EmbedBackward, &mut take),
            false => Ok(()),
        }
    }

    /// The forward pass of a layer.
    fn forward_of(&self, order: &LayerOrder, index: usize) -> Segment {
        Segment::Forward {
            layer: first_like(&order.layers, index),
            keep: self.keep(index, order.first),
        }
    }

    /// Bytes of the keys and values that layers behind this one read.
    fn shared_bytes(&self, kind: &LayerPlan) -> u64 {
        match kind.sharing {
            KeySharing::Source { .. } => self.act(kind.heads.key_size() + kind.heads.value_size()),
            KeySharing::None | KeySharing::Reader { .. } => 0,
        }
    }

    /// Bytes of the inputs of all layers, which are held from the beginning to the end; 0 where there are none.
    fn input_bytes(&self) -> u64 {
        let plan = &self.network.plan;
        let inputs = plan.architecture.layer_inputs;
        inputs.map_or(0, |inputs| self.act(inputs.width * plan.layers.len()))
    }

    /// Tensors kept of a layer, where gradients reach down to layer `first`; its input leaves the device only where the
    /// device's memory is not the host's.
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
    fn gone_home(&self, inputs: usize) -> Trace {
        let mut trace = Trace::new(Stage::Forward);
        let x = self.act(self.network.plan.architecture.hidden_size);
        trace.free(MemoryCategory::SavedActivations, inputs as u64 * x);
        trace
    }

    /// Layer inputs on their way back.
    fn come_back(&self, inputs: usize) -> Trace {
        let mut trace = Trace::new(Stage::Backward);
        let x = self.act(self.network.plan.architecture.hidden_size);
        trace.hold(MemoryCategory::SavedActivations, inputs as u64 * x);
        trace
    }

    /// Copies that gather the layers' weights for one micro-batch where ranks share the host's memory: each writes its part, and reads
    /// all. On a GPU see [`StepTrace::gather_link_s`].
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

    /// Whether a GPU's host has the optimizer's states and updates.
    pub(super) fn is_updated_on_host(&self) -> bool {
        self.host.memory() == Memory::Device && !self.recipe.optimizer.offload.is_none()
    }

    /// The layers whose weights are gathered in a micro-batch.
    pub(super) fn gathered(&self) -> Vec<usize> {
        let plan = &self.network.plan;
        gathers(plan.layers.len(), plan.first_on_tape())
    }

    /// Holds what trainings on one base have of it before the step and after it.
    fn hold_base(&self, level: &mut Level) {
        let (architecture, recipe) = (&self.network.plan.architecture, self.recipe);
        let base = self.network.base_bytes(recipe);
        match ShardedBytes::of_recipe(architecture, recipe) {
            Some(shared) => [shared.own, shared.windows].map(|bytes| hold_weights(level, bytes)),
            None => [base, WeightBytes::default()].map(|bytes| hold_weights(level, bytes)),
        };
    }

    /// Holds what each training has of its own before the step and after it.
    fn hold_training(&self, level: &mut Level) {
        let Self {
            network, recipe, host, ..
        } = *self;
        let (plan, on_gpu) = (&network.plan, host.memory() == Memory::Device);
        let adapted = plan.adapter.iter().flat_map(|adapter| &adapter.linears);
        let base = network.base_bytes(recipe);
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
    fn hold_framework(&self, level: &mut Level, own: u64) {
        let plan = &self.network.plan;
        let rows = self.stream.longest().next_power_of_two();
        let ropes = plan.architecture.ropes.iter();
        let tables: usize = ropes
            .map(|rope| rope.tables() * 2 * 4 * (rows * rope.rotary_dims / 2).next_power_of_two())
            .sum();
        let shared = match self.trainings {
            1 => 0,
            _ => LAYER_OBJECT_BYTES * plan.layers.len() as u64,
        };
        let (tokens, targets) = (self.stream.tokens() as u64, self.stream.targets as u64);
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
    /// wait.
    fn own_objects(&self) -> u64 {
        let plan = &self.network.plan;
        let adapted = plan.adapter.iter().flat_map(|adapter| &adapter.linears).count() as u64;
        let forms = if self.trainings == 1 { 1 } else { 2 };
        let objects = forms * ADAPTER_OBJECT_BYTES * adapted + LAYER_OBJECT_BYTES * plan.layers.len() as u64;
        objects + self.prepared_bytes(self.stream.tokens() as u64)
    }

    /// Rows of the step that is under way and of those that are ready ahead, whose micro-batches hold `tokens` tokens at most.
    fn prepared_bytes(&self, tokens: u64) -> u64 {
        let batch = &self.recipe.batch;
        let steps = batch.prefetch_depth as u64 + 1;
        let micro_batches = steps.saturating_mul(batch.micro_batches() as u64);
        // Lists grow by doubling.
        micro_batches.saturating_mul(PREPARED_TOKEN_BYTES * tokens.next_power_of_two())
    }

    /// The ops of the update.
    ///
    /// Design note: they stand here and not in the trace of [`Segment::Update`], which says what an update holds. That trace is of
    /// all trainings together, where queues of the host need each training's own ops; it is empty where the host updates what a GPU
    /// trains, whose ops count all the same; it has the copies by which the CPU scales 16-bit gradients back; and of Muon it has the
    /// single tensor ops, or nothing for matrices that a GPU updates in blocks, where here are rounds over whole matrices.
    pub(super) fn update_ops(&self) -> Vec<Op> {
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

/// The layers of a step, in order.
struct LayerOrder {
    /// Numbers of [`alike_layers`].
    layers: Vec<usize>,
    /// The lowest layer that a gradient must reach.
    first: usize,
}

impl LayerOrder {
    /// Order of the layers of trainings with these plans, which share the passes.
    fn of(plans: &[&ModelPlan]) -> Self {
        let layers = alike_layers(plans);
        Self {
            first: plans
                .iter()
                .map(|plan| plan.first_on_tape())
                .min()
                .unwrap_or(layers.len()),
            layers,
        }
    }
}

/// Traces of a step's segments, each made when it is first asked for.
pub(super) struct SegmentTraces<'a> {
    model: &'a dyn StepModel,
    made: Vec<(Segment, Trace)>,
}

impl<'a> SegmentTraces<'a> {
    pub(super) fn of(model: &'a dyn StepModel) -> Self {
        Self {
            model,
            made: Vec::with_capacity(8),
        }
    }

    /// The trace of a segment.
    pub(super) fn get(&mut self, segment: Segment) -> Result<&Trace, PredictError> {
        let index = match self.made.iter().position(|(known, _)| *known == segment) {
            Some(index) => index,
            None => {
                let trace = self.model.trace(segment);
                let trace = trace.map_err(|reason| PredictError::OnPaper { segment, reason })?;
                self.made.push((segment, trace));
                self.made.len() - 1
            }
        };
        Ok(&self.made[index].1)
    }

    /// Hands the trace of a segment on.
    fn take(&mut self, segment: Segment, take: &mut impl FnMut(Option<Segment>, &Trace)) -> Result<(), PredictError> {
        take(Some(segment), self.get(segment)?);
        Ok(())
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
            kernels: 1.0,
            weights: 0.0,
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
