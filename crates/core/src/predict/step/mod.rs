//! A whole step: from the base weights to the update, with the memory by part and the list of ops.

mod head;

use super::Vectors;
use super::host::Host;
use super::network::{Network, Slots};
use super::op::{Form, Module, Op, Pass, Right, Stage, Work};
use super::optimizer_state::{SMALLEST_CODED, gpu_update_bytes, state_bytes, update_bytes};
use super::part::{Bytes, Part};
use super::storage::base_bytes;
use super::stream::StreamShape;
use super::trace::{Level, Trace};
use super::walker::Walker;
use crate::recipe::{Checkpointing, Precision, Recipe, UpdateOrder};

/// Bytes of the objects of one adapted linear layer: names, views, map entries.
const ADAPTER_OBJECT_BYTES: u64 = 2_000;
/// Bytes of the objects of one decoder layer.
const LAYER_OBJECT_BYTES: u64 = 5_000;

/// Layer inputs that a GPU holds while they are on their way to the host.
const UNDER_WAY: usize = 2;

/// A step of one recipe on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepWalk<'a> {
    pub network: &'a Network<'a>,
    pub recipe: &'a Recipe,
    pub host: Host,
}

impl<'a> StepWalk<'a> {
    /// Bytes by part at the highest moment of a step on the micro-batch `stream`.
    pub fn bytes(&self, stream: &StreamShape) -> Bytes {
        let mut level = Level::default();
        self.hold_lasting(&mut level, stream);
        let walker = Walker::new(self.network, self.host, self.recipe.precision, stream);
        self.walk(&walker, |_, trace| level.replay(trace));
        let mut update = Trace::new(Stage::Optimizer);
        let (kind, slots) = (self.recipe.optimizer.kind, &self.network.slots);
        let on_gpu = self.host.vectors == Vectors::None;
        if self.recipe.precision == Precision::Fp16 && !on_gpu {
            update.spike(Part::Scratch, 4 * self.network.trained_elements());
        }
        let bytes = if on_gpu { gpu_update_bytes } else { update_bytes };
        update.spike(Part::Scratch, bytes(kind, slots));
        level.replay(&update);
        let mut bytes = level.at_peak();
        let threads = self.host.threads as u64;
        bytes.add(Part::Framework, level.scratch.bytes(threads));
        bytes
    }

    /// Bytes that the forward pass keeps for the backward pass, in the host's memory or the device's.
    pub fn saved_bytes(&self, stream: &StreamShape) -> u64 {
        let walker = Walker::new(self.network, self.host, self.recipe.precision, stream);
        let x = walker.act(self.network.architecture.hidden_size);
        let layers = self
            .network
            .layers
            .iter()
            .enumerate()
            .skip(self.network.first_on_tape());
        let of_layer = |(index, kind): (usize, &usize)| match self.keep(index) {
            Keep::Saved => x + walker.saved_bytes(&self.network.kinds[*kind]) - walker.between_bytes(),
            Keep::Input | Keep::Home | Keep::Nothing => x,
        };
        layers.map(of_layer).sum::<u64>() + x + walker.wide(1)
    }

    /// The ops of one micro-batch, and those of the update.
    pub fn ops(&self, stream: &StreamShape) -> (Vec<Op>, Vec<Op>) {
        let walker = Walker::new(self.network, self.host, self.recipe.precision, stream);
        let mut pieces: Vec<(Piece, usize, f64)> = Vec::with_capacity(8);
        let mut ops: Vec<Op> = Vec::with_capacity(256);
        self.walk(&walker, |piece, trace| {
            let known = pieces
                .iter_mut()
                .find(|(known, ..)| *known == piece && piece != Piece::Once);
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

    /// What is there before the step and after it.
    fn hold_lasting(&self, level: &mut Level, stream: &StreamShape) {
        let Self { network, recipe, .. } = self;
        let base = base_bytes(network.architecture, recipe.precision);
        level.hold(Part::BaseWeights, base.values);
        level.hold(Part::QuantizationConstants, base.constants);
        let elements = network.trained_elements();
        level.hold(Part::Adapters, 4 * elements);
        if self.host.vectors == Vectors::None && recipe.precision.compute_bytes() == 2 {
            // What products read.
            level.hold(Part::Adapters, 2 * network.factor_elements);
        }
        level.hold(Part::Gradients, 4 * elements);
        if recipe.adapter.is_none() {
            // The values are copied tensor by tensor; the weights that they came from are then let go of.
            if recipe.precision != Precision::Fp32 {
                let largest = network
                    .slots
                    .iter()
                    .map(|slots| 4 * slots.elements())
                    .max()
                    .unwrap_or(0);
                level.hold(Part::Scratch, largest);
                level.free(Part::Scratch, largest);
            }
            level.free(Part::BaseWeights, base.values);
        }
        let on_device = self.host.vectors != Vectors::None || !recipe.optimizer.kind.is_paged();
        if on_device {
            level.hold(Part::OptimizerState, state_bytes(&recipe.optimizer, &network.slots));
        }
        for (weight, count) in &network.replaced {
            let bytes = super::storage::linear_bytes(*weight, recipe.precision);
            level.hold(Part::BaseWeights, *count as u64 * bytes.values);
            level.hold(Part::QuantizationConstants, *count as u64 * bytes.constants);
        }
        if network.dora {
            let vectors = network.slots.iter().filter(|slots| slots.columns.is_none());
            // Row norms of the weights, and norms and gains of the pass.
            let norms: u64 = vectors.map(|slots| 3 * 4 * slots.elements() * slots.count as u64).sum();
            level.hold(Part::Adapters, norms);
        }
        let architecture = network.architecture;
        let rows = stream.longest().next_power_of_two();
        let ropes = architecture.ropes.iter();
        let tables: usize = ropes
            .map(|rope| 2 * 4 * (rows * rope.rotary_dims / 2).next_power_of_two())
            .sum();
        let objects =
            ADAPTER_OBJECT_BYTES * network.adapted as u64 + LAYER_OBJECT_BYTES * architecture.layers.len() as u64;
        let (tokens, targets) = (stream.tokens() as u64, stream.targets as u64);
        let rest = match self.host.vectors {
            // Ids, positions and bounds of documents, and four numbers for each target.
            Vectors::None => 4 * (4 * tokens + 4 * targets),
            _ => objects + 8 * tokens,
        };
        level.hold(Part::Framework, tables as u64 + rest);
    }

    /// Walks one micro-batch forward and backward and hands every piece to `take`.
    fn walk(&self, walker: &Walker<'_>, mut take: impl FnMut(Piece, &Trace)) {
        let network = self.network;
        let first = network.first_on_tape();
        take(Piece::Once, &self.embed(walker));
        let forward = Pieces::new(network, |kind, kept| self.forward(walker, kind, kept));
        for (index, kind) in network.layers.iter().enumerate() {
            let keep = if index < first { Keep::Nothing } else { self.keep(index) };
            take(Piece::Forward(*kind, keep), forward.of(*kind, keep));
            if keep == Keep::Home && index >= first + UNDER_WAY {
                take(Piece::Once, &self.gone_home(walker, 1));
            }
        }
        let at_home = self.sends_home() && first < network.layers.len();
        if at_home {
            take(
                Piece::Once,
                &self.gone_home(walker, UNDER_WAY.min(network.layers.len() - first)),
            );
        }
        take(Piece::Once, &self.head(walker));
        let backward = Pieces::new(network, |kind, kept| self.backward(walker, kind, kept, true));
        for index in (first..network.layers.len()).rev() {
            let (kind, keep) = (network.layers[index], self.keep(index));
            if at_home {
                // While a layer runs backward, the input of the one below it is on its way.
                let top = usize::from(index + 1 == network.layers.len());
                take(Piece::Once, &self.come_back(walker, top + usize::from(index > first)));
            }
            if index > first || network.embedding_trains {
                take(Piece::Backward(kind, keep), backward.of(kind, keep));
            } else {
                take(Piece::Once, &self.backward(walker, kind, keep, false));
            }
        }
    }

    fn keep(&self, index: usize) -> Keep {
        match self.recipe.gradient_checkpointing {
            Checkpointing::None => Keep::Saved,
            Checkpointing::Every(nth) if !index.is_multiple_of(nth.get() as usize) => Keep::Saved,
            Checkpointing::Offload if self.sends_home() => Keep::Home,
            Checkpointing::Every(_) | Checkpointing::Full | Checkpointing::Offload => Keep::Input,
        }
    }

    /// Whether layer inputs leave the device: where its memory is not the host's.
    fn sends_home(&self) -> bool {
        self.recipe.gradient_checkpointing == Checkpointing::Offload && self.host.vectors == Vectors::None
    }

    /// Layer inputs that have arrived in the host's memory.
    fn gone_home(&self, walker: &Walker<'_>, inputs: usize) -> Trace {
        let mut trace = Trace::new(Stage::Forward);
        let x = walker.act(self.network.architecture.hidden_size);
        trace.free(Part::SavedActivations, inputs as u64 * x);
        trace
    }

    /// Layer inputs on their way back.
    fn come_back(&self, walker: &Walker<'_>, inputs: usize) -> Trace {
        let mut trace = Trace::new(Stage::Backward);
        let x = walker.act(self.network.architecture.hidden_size);
        trace.hold(Part::SavedActivations, inputs as u64 * x);
        trace
    }

    fn embed(&self, walker: &Walker<'_>) -> Trace {
        let hidden = self.network.architecture.hidden_size;
        let mut trace = Trace::new(Stage::Forward);
        walker.pass(&mut trace, Module::Optimizer, Pass::Step, 1);
        if self.network.dora {
            walker.dora_factors(&mut trace);
        }
        if self.network.embedding_trains && walker.c() < 4 {
            trace.hold(Part::Scratch, walker.wide(hidden));
            trace.hold(Part::Scratch, walker.act(hidden));
            trace.free(Part::Scratch, walker.wide(hidden));
        } else {
            trace.hold(Part::Scratch, walker.act(hidden));
        }
        walker.pass(&mut trace, Module::Embedding, Pass::Gather, hidden);
        if self.network.architecture.embedding_scale.is_some() {
            trace.spike(Part::Scratch, walker.act(hidden));
            walker.pass(&mut trace, Module::Embedding, Pass::Copy, hidden);
        }
        trace
    }

    /// A layer forward: its input, in the scratch, is replaced by its output.
    fn forward(&self, walker: &Walker<'_>, kind: usize, keep: Keep) -> Trace {
        let (kind, x) = (
            &self.network.kinds[kind],
            walker.act(self.network.architecture.hidden_size),
        );
        let mut trace = Trace::new(Stage::Forward);
        match keep {
            Keep::Saved => {
                trace.rename(Part::Scratch, Part::SavedActivations, x);
                walker.layer_forward(&mut trace, kind, Part::SavedActivations);
                trace.free(Part::SavedActivations, walker.between_bytes());
            }
            Keep::Input | Keep::Home | Keep::Nothing => {
                if keep != Keep::Nothing {
                    trace.rename(Part::Scratch, Part::SavedActivations, x);
                }
                walker.layer_forward(&mut trace, kind, Part::Scratch);
                let input = if keep == Keep::Nothing { x } else { 0 };
                trace.free(Part::Scratch, walker.saved_bytes(kind) + input);
            }
        }
        trace
    }

    fn backward(&self, walker: &Walker<'_>, kind: usize, keep: Keep, wants_dx: bool) -> Trace {
        let kind = &self.network.kinds[kind];
        let mut trace = Trace::new(Stage::Backward);
        if matches!(keep, Keep::Input | Keep::Home) {
            trace.stage = Stage::Recompute;
            walker.layer_recall(&mut trace, kind);
            trace.stage = Stage::Backward;
        }
        let between = if keep == Keep::Saved { walker.between_bytes() } else { 0 };
        walker.layer_backward(&mut trace, kind, wants_dx, between);
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

fn update(pass: Pass, elements: u64, times: usize) -> Op {
    Op {
        stage: Stage::Optimizer,
        work: Work::Pass {
            module: Module::Optimizer,
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

/// A rule with 8-bit states, one parameter after the other; all small parameters together have F32 states.
fn coded(slots: &[Slots], large: Pass, small: Pass) -> Vec<Op> {
    let (coded, plain): (Vec<Slots>, Vec<Slots>) = slots.iter().partition(|slots| slots.elements() >= SMALLEST_CODED);
    let mut ops = each(&coded, large);
    let elements: u64 = plain.iter().map(|slots| slots.elements() * slots.count as u64).sum();
    if elements > 0 {
        ops.push(update(small, elements, 1));
    }
    ops
}

/// What a forward pass keeps of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    Input,
    /// The input, in the host's memory.
    Home,
    Saved,
}

/// A piece of a step: the same piece computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Comes once.
    Once,
    /// A layer of this kind, and what is kept of it.
    Forward(usize, Keep),
    Backward(usize, Keep),
}

/// The traces of each kind of layer under each way to keep it, made when they are first asked for.
struct Pieces<F> {
    made: Vec<[std::cell::OnceCell<Trace>; 4]>,
    make: F,
}

impl<F: Fn(usize, Keep) -> Trace> Pieces<F> {
    fn new(network: &Network<'_>, make: F) -> Self {
        let made = network.kinds.iter().map(|_| Default::default()).collect();
        Self { made, make }
    }

    fn of(&self, kind: usize, keep: Keep) -> &Trace {
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
            form: Form::Nn,
            rows,
            columns,
            depth,
            adapter_depth: 0.0,
        })
    };
    let copy = Work::Pass {
        module: Module::Optimizer,
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
