//! Peak memory of a stack's training, phase by phase: load, first step, steady steps, evaluation.

use std::rc::Rc;

use serde::Serialize;

use super::behaviour::Recompute;
use super::heap::{Heap, KINDS, Kind, Peaks};
use super::model::Model;
use super::setting::Trains;
use super::shape::LinearShape;
use super::tape::{Body, Cost, Tape, Tensor};
use crate::predict::{Bytes, MemoryCategory};

/// Bytes of a phase at its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PhasePeak {
    pub phase: &'static str,
    /// Bytes of tensors, as `torch.cuda.max_memory_allocated` counts them.
    pub tensors_bytes: u64,
    /// Bytes that the allocator took of the device, as `max_memory_reserved` counts them.
    pub reserved_bytes: u64,
}

/// The phase of an evaluation, which is no part of a training's peak: it runs at a batch of its own, if at all.
pub const EVALUATION: &str = "evaluation";

/// Bytes that a training needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackMemory {
    pub phases: Vec<PhasePeak>,
    /// Bytes of each kind at the highest peak of tensors.
    pub components: Vec<(&'static str, u64)>,
    pub tensors_bytes: u64,
    pub reserved_bytes: u64,
    /// The device was too small, whatever was given back to it.
    pub overflows: bool,
}

impl StackMemory {
    /// Bytes at the highest peak of tensors, in the categories of the native engine.
    pub fn by_category(&self) -> Bytes {
        let mut all = Bytes::default();
        // Components stand in the order of the kinds.
        for (kind, (_, bytes)) in KINDS.into_iter().zip(&self.components) {
            all.add(category_of(kind), *bytes);
        }
        all
    }
}

fn category_of(kind: Kind) -> MemoryCategory {
    match kind {
        Kind::Weights => MemoryCategory::BaseWeights,
        Kind::QuantisationConstants => MemoryCategory::QuantizationConstants,
        Kind::Adapters => MemoryCategory::Adapters,
        Kind::Gradients => MemoryCategory::Gradients,
        Kind::OptimizerState => MemoryCategory::OptimizerState,
        Kind::SavedActivations => MemoryCategory::SavedActivations,
        Kind::Logits => MemoryCategory::Logits,
        Kind::Working => MemoryCategory::Scratch,
    }
}

/// Costs of a traced training, beside its memory.
pub(super) struct Traced {
    pub(super) memory: StackMemory,
    /// Costs of one micro-batch, and of one update.
    pub(super) micro_batch: Vec<Cost>,
    pub(super) update: Vec<Cost>,
}

/// Workspace of the matrix library, which PyTorch's allocator holds.
const WORKSPACE: u64 = 8_519_680;

/// Lengths that are tried where rows differ: more of them take little more.
const LENGTHS: u32 = 48;
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Runs a model's training on the tape: three steps, of which the last stands for all others, and an evaluation.
pub(super) fn trace(model: &Rc<Model>, capacity: Option<u64>) -> Traced {
    let mut tape = Tape::new(match model.is_host {
        true => Heap::of_host(capacity),
        false => Heap::new(capacity),
    });
    // Gradients that are shared out go to the host as soon as they are there, where that holds the states.
    let sends_gradients = model.setting.offloads && model.setting.shares()[1] > 1;
    tape.drops_gradients = model.setting.optimizer.in_backward || sends_gradients;
    tape.offloads = model.setting.recompute == Recompute::LayersOffloaded;
    let mut run = Run {
        model: Rc::clone(model),
        phases: Vec::new(),
        highest: Peaks::default(),
        tape,
    };
    let weights = run.load();
    let workspace = (!model.is_host).then(|| run.tape.tensor(WORKSPACE, 1, Kind::Working));
    let buffers = run.buffers();
    let mut states = None;
    if model.setting.rows_differ {
        let made = run.update(None);
        states = Some(run.rows_of_all_lengths(made));
    }
    let mut costs = [Vec::new(), Vec::new()];
    for (number, phase) in ["first_step", "second_step", "steady"].into_iter().enumerate() {
        run.tape.heap().restart_peaks();
        let is_last = number == 2;
        // Gradients of the second micro-batch are added to those of the first: more of them need no more.
        for _ in 0..model.setting.gradient_accumulation.min(2) {
            run.tape.counts_costs = is_last;
            run.tape.costs.clear();
            run.micro_batch();
            run.tape.counts_costs = false;
            costs[0] = std::mem::take(&mut run.tape.costs);
        }
        states = Some(run.update(states));
        if is_last {
            costs[1] = run.update_costs();
        }
        run.end(phase);
    }
    run.evaluate();
    drop((weights, states, workspace, buffers));
    let overflows = run.tape.heap().overflowed();
    let [micro_batch, update] = costs;
    Traced {
        memory: StackMemory {
            tensors_bytes: highest(&run.phases, |phase| phase.tensors_bytes),
            reserved_bytes: highest(&run.phases, |phase| phase.reserved_bytes),
            components: KINDS
                .iter()
                .map(|kind| (kind.name(), run.highest.kinds[*kind as usize]))
                .collect(),
            phases: run.phases,
            overflows,
        },
        micro_batch,
        update,
    }
}

fn highest(phases: &[PhasePeak], of: impl Fn(&PhasePeak) -> u64) -> u64 {
    let training = phases.iter().filter(|phase| phase.phase != EVALUATION);
    training.map(of).max().unwrap_or(0)
}

struct Run {
    model: Rc<Model>,
    tape: Tape,
    phases: Vec<PhasePeak>,
    highest: Peaks,
}

impl Run {
    fn end(&mut self, phase: &'static str) {
        let peaks = self.tape.heap().peaks();
        if peaks.tensors > self.highest.tensors && phase != EVALUATION {
            self.highest = peaks;
        }
        self.phases.push(PhasePeak {
            phase,
            tensors_bytes: peaks.tensors,
            reserved_bytes: peaks.reserved,
        });
    }

    /// Weights and adapters, each tensor a block of its own; behind them those of a reference that is a model of its own.
    fn load(&mut self) -> Vec<Tensor> {
        let mut held = self.weights();
        self.adapters(&mut held);
        if self.model.setting.comparison.has_copy {
            held.extend(self.weights());
        }
        self.end("load");
        held
    }

    fn weights(&mut self) -> Vec<Tensor> {
        let model = Rc::clone(&self.model);
        let (shape, setting) = (&model.shape, &model.setting);
        let [share, ..] = setting.shares();
        let plain = model.plain().bytes();
        let mut held = Vec::new();
        let embeddings = if shape.tied_embeddings { 1 } else { 2 };
        for _ in 0..embeddings {
            let elements = shape.vocabulary * shape.hidden;
            // It arrives as published, and is raised then.
            let narrow = self
                .tape
                .tensor(elements.div_ceil(share), setting.loads.bytes(), Kind::Weights);
            if plain == setting.loads.bytes() {
                held.push(narrow);
                continue;
            }
            held.push(self.tape.tensor(elements.div_ceil(share), plain, Kind::Weights));
        }
        if shape.tables > 0 {
            held.push(self.tape.tensor(shape.tables.div_ceil(share), plain, Kind::Weights));
        }
        if setting.offloads && share > 1 {
            held.clear();
        }
        for _ in 0..shape.layers {
            let experts = (shape.expert_elements() > 0).then(|| shape.expert_elements());
            let linears = shape.linears().into_iter().map(|layer| layer.elements());
            for elements in linears.chain(experts).map(|elements| shape.held(elements)) {
                let [codes, constants] = setting.weights.bytes(elements, setting.loads);
                if setting.offloads && share > 1 {
                    continue;
                }
                if setting.weights.is_quantized() {
                    // A weight arrives in 16 bits and is quantized on the device.
                    drop(self.tape.tensor(elements.div_ceil(share), 2, Kind::Weights));
                }
                held.push(self.tape.tensor(codes.div_ceil(share), 1, Kind::Weights));
                if constants > 0 {
                    let constants = constants.div_ceil(share);
                    held.push(self.tape.tensor(constants, 1, Kind::QuantisationConstants));
                }
            }
            held.push(self.tape.tensor(shape.small_elements(), model.stream(), Kind::Weights));
        }
        held
    }

    /// Buffers that layers of the stack's own keep: one for the largest weight unpacked, and two for inputs that come back from the
    /// host's memory.
    fn buffers(&mut self) -> Vec<Tensor> {
        let model = Rc::clone(&self.model);
        let largest = model.shape.linears().iter().map(LinearShape::elements).max();
        let unpacked = largest.filter(|_| model.keeps_unpacked());
        let mut held: Vec<Tensor> = unpacked
            .map(|elements| self.tape.tensor(elements, model.compute(), Kind::Working))
            .into_iter()
            .collect();
        if model.setting.stack.own_layers.is_some() && self.tape.offloads {
            let inputs = model.tokens() * model.shape.hidden;
            held.extend([(); 2].map(|()| self.tape.tensor(inputs, model.stream(), Kind::Working)));
        }
        held
    }

    fn adapters(&mut self, held: &mut Vec<Tensor>) {
        let model = Rc::clone(&self.model);
        let [share, ..] = model.setting.shares();
        if model.setting.trains == Trains::Everything {
            return;
        }
        for (elements, width) in trained_tensors(&model) {
            held.push(self.tape.tensor(elements.div_ceil(share), width, Kind::Adapters));
        }
    }

    fn micro_batch(&mut self) {
        let model = Rc::clone(&self.model);
        let [share, ..] = model.setting.shares();
        // What is shared out is gathered: embedding and head for the whole pass, and one layer ahead of time.
        let root = model.shape.embedding_elements() * model.plain().bytes() + model.layer_bytes();
        let gathered = (share > 1).then(|| self.tape.tensor(model.gathered_bytes(root), 1, Kind::Working));
        let comparison = model.setting.comparison;
        for _ in 0..comparison.own_passes {
            scored_without_gradients(&mut self.tape, &model);
        }
        let mut stream = model.embedded(&mut self.tape);
        let mask = model.mask(&mut self.tape);
        for index in 0..model.shape.layers as usize {
            stream = match model.runs_again() {
                true => {
                    let own = Rc::clone(&model);
                    let body: Body = Rc::new(move |tape, input| own.layer(tape, index, input));
                    self.tape.again(&body, stream)
                }
                false => model.layer(&mut self.tape, index, stream),
            };
        }
        let (loss, held) = model.loss(&mut self.tape, stream);
        if comparison.reference_passes > 0 {
            let reference = model.without_adapters();
            for _ in 0..comparison.reference_passes {
                scored_without_gradients(&mut self.tape, &reference);
            }
        }
        self.tape.backward(loss);
        drop((held, mask, gathered));
    }

    /// The optimizer's step: states that are made in the first one, temporaries, and the end of the gradients.
    fn update(&mut self, states: Option<Vec<Tensor>>) -> Vec<Tensor> {
        let model = Rc::clone(&self.model);
        let optimizer = model.setting.optimizer;
        let [weights, gradients, shared] = model.setting.shares();
        let is_outside = optimizer.is_paged || model.setting.offloads;
        let sizes = trained_tensors(&model);
        let has_masters = model.setting.keeps_masters();
        let states = states.unwrap_or_else(|| {
            let mut made = Vec::new();
            for (elements, width) in sizes.iter().filter(|_| !is_outside) {
                let own = elements.div_ceil(shared);
                let width = if has_masters { 4 } else { *width };
                for _ in 0..optimizer.states + u64::from(has_masters) {
                    made.push(self.tape.tensor(own, width, Kind::OptimizerState));
                }
                if optimizer.bytes > 0 {
                    made.push(self.tape.tensor(own, optimizer.bytes, Kind::OptimizerState));
                }
            }
            // DistributedDataParallel keeps gradients in buckets beside the parameters' own.
            if model.setting.devices > 1 && weights == 1 {
                let all: u64 = sizes.iter().map(|(elements, width)| elements * width).sum();
                made.push(self.tape.tensor(all.div_ceil(gradients), 1, Kind::Gradients));
            }
            made
        });
        // Temporaries: those of an update of all parameters at once, or gradients in F32 for the masters.
        let width_of = |width: u64| if has_masters { 4 } else { width };
        // PyTorch updates tensor by tensor on the host.
        let foreach = optimizer.foreach && !model.is_host;
        if (foreach || has_masters) && !optimizer.in_backward && !is_outside {
            let temporaries: Vec<Tensor> = sizes
                .iter()
                .map(|(elements, width)| {
                    self.tape
                        .tensor(elements.div_ceil(shared), width_of(*width), Kind::Working)
                })
                .collect();
            drop(temporaries);
        }
        self.tape.forget_gradients();
        states
    }

    /// Steps on batches of other lengths. The allocator's blocks fit one length, so it holds more after each; how often a length
    /// occurs does not matter then. The lengths are spread evenly, in the order of multiples of the golden ratio.
    fn rows_of_all_lengths(&mut self, mut states: Vec<Tensor>) -> Vec<Tensor> {
        let whole = Rc::clone(&self.model);
        let longest = whole.setting.sequence_length;
        self.tape.heap().restart_peaks();
        for step in 1..=LENGTHS {
            let share = (f64::from(step) * GOLDEN).fract();
            let mut model = Model::clone(&whole);
            model.setting.sequence_length = ((longest as f64 * share) as u64).max(1);
            self.model = Rc::new(model);
            self.micro_batch();
            states = self.update(Some(states));
        }
        self.model = whole;
        self.micro_batch();
        states = self.update(Some(states));
        self.end("all_lengths");
        states
    }

    fn update_costs(&self) -> Vec<Cost> {
        let model = &self.model;
        let trained: u64 = trained_tensors(model)
            .iter()
            .map(|(elements, width)| elements * width)
            .sum();
        let [_, _, shared] = model.setting.shares();
        let bytes = trained.div_ceil(shared) * 7;
        let launches = if model.setting.optimizer.foreach { 30.0 } else { 10.0 };
        vec![Cost {
            launches,
            ..Cost::pass(bytes)
        }]
    }

    fn evaluate(&mut self) {
        self.tape.heap().restart_peaks();
        let model = Rc::clone(&self.model);
        scored_without_gradients(&mut self.tape, &model);
        self.end(EVALUATION);
    }
}

/// Runs a pass that no gradient goes through, to the scores of its tokens.
fn scored_without_gradients(tape: &mut Tape, model: &Model) {
    tape.without_gradients(|tape| {
        let mut stream = model.embedded(tape);
        let mask = model.mask(tape);
        for index in 0..model.shape.layers as usize {
            stream = model.layer(tape, index, stream);
        }
        model.evaluated(tape, stream);
        drop(mask);
    });
}

/// Elements of each trained tensor, and bytes of one.
pub(super) fn trained_tensors(model: &Model) -> Vec<(u64, u64)> {
    let shape = &model.shape;
    let embeddings = if shape.tied_embeddings { 1 } else { 2 };
    let whole = std::iter::repeat_n((shape.vocabulary * shape.hidden, model.plain().bytes()), embeddings);
    let linears = shape.linears();
    match &model.setting.trains {
        Trains::Everything => {
            let width = model.setting.loads.bytes();
            let layer = linears.iter().map(LinearShape::elements);
            let layer = layer.chain([shape.expert_elements(), shape.small_elements()]);
            let layer: Vec<u64> = layer.map(|elements| shape.held(elements)).collect();
            let layers = (0..shape.layers).flat_map(|_| layer.iter().map(|elements| (*elements, width)));
            let tables = std::iter::once((shape.tables, width));
            let all = whole.chain(tables).chain(layers);
            all.filter(|(elements, _)| *elements > 0).collect()
        }
        Trains::Adapters {
            rank,
            targets,
            whole_embeddings,
            ..
        } => {
            let width = model.setting.adapters.bytes();
            let adapted = linears.iter().filter(|layer| targets.contains(&layer.role));
            let layer: Vec<u64> = adapted
                .flat_map(|layer| {
                    let magnitudes = model.setting.dora.then_some(layer.outer);
                    [rank * layer.inner, rank * layer.outer].into_iter().chain(magnitudes)
                })
                .collect();
            let layers = (0..shape.layers).flat_map(|_| layer.iter().map(|elements| (*elements, width)));
            whole.filter(|_| *whole_embeddings).chain(layers).collect()
        }
    }
}
