//! A step of another stack as its autograd runs it: which tensors exist when, without any values.
//!
//! A tensor's memory goes back to the heap when its last holder lets go of it, as in Python. An op whose inputs need a
//! gradient leaves a node that holds what its backward pass reads. The backward pass goes over the nodes from the last to the
//! first, takes memory for gradients and lets go of what a node held once it has run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::heap::{BlockId, Heap, Kind};

/// Memory that goes back to its heap.
#[derive(Debug)]
struct Buffer {
    heap: Rc<RefCell<Heap>>,
    block: BlockId,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.heap.borrow_mut().give(self.block);
    }
}

/// A tensor of so many elements of `width` bytes.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    buffer: Option<Rc<Buffer>>,
    id: usize,
    pub(super) elements: u64,
    pub(super) width: u64,
    pub(super) needs_gradient: bool,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.width)
    }
}

/// Cost of an op in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// FLOPs of products.
    pub(super) flops: f64,
    /// Bytes that are read and written.
    pub(super) bytes: f64,
    /// Kernels that are launched.
    pub(super) launches: f64,
    /// Rows of the product, which decide how well it fills the device; 0 where there is none.
    pub(super) rows: u64,
    /// The product's operands are F32.
    pub(super) is_wide: bool,
}

impl Cost {
    /// One pass over memory.
    pub(super) fn pass(bytes: u64) -> Self {
        Self {
            bytes: bytes as f64,
            launches: 1.0,
            ..Self::default()
        }
    }
}

/// Work of an op for its inputs' gradients.
#[derive(Clone)]
pub(super) enum Backward {
    /// Each input gets a tensor of its own size.
    Own,
    /// Inputs share the output's gradient.
    Shared,
    /// The forward pass runs again from the one input, with gradients.
    Again(Body),
}

/// A part of the model that can run twice.
pub(super) type Body = Rc<dyn Fn(&mut Tape, Tensor) -> Tensor>;

/// An op, as it is told to the tape.
pub(super) struct Op<'a> {
    pub(super) elements: u64,
    pub(super) width: u64,
    pub(super) inputs: &'a [&'a Tensor],
    pub(super) saved: &'a [&'a Tensor],
    /// The backward pass reads the output.
    pub(super) saves_output: bool,
    pub(super) backward: Backward,
    /// Bytes that exist while the forward pass of the op runs, and while its backward pass does.
    pub(super) scratch: [u64; 2],
    /// The trained parameter among the op's operands: its index and elements.
    pub(super) trained: Option<Parameter>,
    pub(super) cost: [Cost; 2],
}

impl Default for Op<'_> {
    fn default() -> Self {
        Self {
            elements: 0,
            width: 4,
            inputs: &[],
            saved: &[],
            saves_output: false,
            backward: Backward::Own,
            scratch: [0; 2],
            trained: None,
            cost: [Cost::default(); 2],
        }
    }
}

/// A trained parameter: where its gradient is kept, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parameter {
    pub(super) index: usize,
    pub(super) elements: u64,
    /// Bytes of an element of the gradient that is kept, and of the one that the op makes.
    pub(super) widths: [u64; 2],
}

struct Node {
    output: usize,
    inputs: Vec<Tensor>,
    saved: Vec<Tensor>,
    backward: Backward,
    scratch: u64,
    trained: Option<Parameter>,
    cost: Cost,
}

/// The tape.
pub(super) struct Tape {
    heap: Rc<RefCell<Heap>>,
    nodes: Vec<Node>,
    is_recording: bool,
    next: usize,
    kind: Kind,
    gradients: HashMap<usize, Tensor>,
    /// Gradients go to the optimizer at once and are not kept.
    pub(super) drops_gradients: bool,
    /// Saved inputs of layers lie in the host's memory.
    pub(super) offloads: bool,
    /// Costs of the ops so far: of products, of passes over memory.
    pub(super) costs: Vec<Cost>,
    pub(super) counts_costs: bool,
    /// Bytes of the device that were free when they were first asked for.
    first_free: Option<u64>,
}

impl Tape {
    pub(super) fn new(heap: Heap) -> Self {
        Self {
            heap: Rc::new(RefCell::new(heap)),
            nodes: Vec::new(),
            is_recording: true,
            next: 0,
            kind: Kind::Working,
            gradients: HashMap::new(),
            drops_gradients: false,
            offloads: false,
            costs: Vec::new(),
            counts_costs: false,
            first_free: None,
        }
    }

    /// Reads or changes the heap.
    pub(super) fn heap(&self) -> std::cell::RefMut<'_, Heap> {
        self.heap.borrow_mut()
    }

    /// Bytes of the device that were free when they were first asked for, as a program knows them that looks once.
    pub(super) fn first_free(&mut self) -> u64 {
        let free = self.heap.borrow().free_bytes();
        *self.first_free.get_or_insert(free)
    }

    /// Tensors from here on are for `kind`; returns what they were for before.
    pub(super) fn kind(&mut self, kind: Kind) -> Kind {
        std::mem::replace(&mut self.kind, kind)
    }

    /// A tensor that nothing computed, such as a weight.
    pub(super) fn tensor(&mut self, elements: u64, width: u64, kind: Kind) -> Tensor {
        let id = self.id();
        self.taken(id, elements, width, kind)
    }

    /// A tensor that takes no memory of its own, such as a mask that all layers share.
    pub(super) fn shared(&mut self, elements: u64, width: u64, needs_gradient: bool) -> Tensor {
        Tensor {
            buffer: None,
            id: self.id(),
            elements,
            width,
            needs_gradient,
        }
    }

    /// Runs an op forward.
    pub(super) fn op(&mut self, op: Op<'_>) -> Tensor {
        let scratch = (op.scratch[0] > 0).then(|| self.tensor(op.scratch[0], 1, Kind::Working));
        let id = self.id();
        let mut output = match (&op.backward, op.inputs) {
            (Backward::Shared, [input, ..]) if op.elements == 0 => Tensor { id, ..(*input).clone() },
            _ => self.taken(id, op.elements, op.width, self.kind),
        };
        drop(scratch);
        self.counted(op.cost[0]);
        output.needs_gradient = op.trained.is_some() || op.inputs.iter().any(|input| input.needs_gradient);
        if !(self.is_recording && output.needs_gradient) {
            return output;
        }
        let own = op.saves_output.then(|| output.clone());
        let saved: Vec<Tensor> = op.saved.iter().map(|tensor| (*tensor).clone()).chain(own).collect();
        for tensor in &saved {
            self.rename(tensor, Kind::SavedActivations);
        }
        self.nodes.push(Node {
            output: id,
            // Only sizes and ids of inputs are read: their memory is not held.
            inputs: op.inputs.iter().map(|input| without_memory(input)).collect(),
            saved,
            backward: op.backward,
            scratch: op.scratch[1],
            trained: op.trained,
            cost: op.cost[1],
        });
        output
    }

    /// Runs `body` without keeping anything but its input, to run it again in the backward pass.
    pub(super) fn again(&mut self, body: &Body, input: Tensor) -> Tensor {
        let was_recording = std::mem::replace(&mut self.is_recording, false);
        let mut output = body(self, input.clone());
        self.is_recording = was_recording;
        output.id = self.id();
        output.needs_gradient = true;
        if was_recording {
            let mut kept = input.clone();
            match self.offloads {
                true => kept.buffer = None,
                false => self.rename(&kept, Kind::SavedActivations),
            }
            self.nodes.push(Node {
                output: output.id,
                inputs: vec![without_memory(&input)],
                saved: vec![kept],
                backward: Backward::Again(Rc::clone(body)),
                scratch: 0,
                trained: None,
                cost: Cost::default(),
            });
        }
        output
    }

    /// Bytes that nodes hold, each buffer counted once.
    #[cfg(test)]
    pub(super) fn saved_bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        let held = self.nodes.iter().flat_map(|node| &node.saved);
        held.filter(|tensor| tensor.buffer.as_ref().is_some_and(|buffer| seen.insert(buffer.block)))
            .map(Tensor::bytes)
            .sum()
    }

    /// Runs the backward pass from `output`, whose gradient is taken now.
    pub(super) fn backward(&mut self, output: Tensor) {
        let mut gradients = HashMap::new();
        let gradient = self.taken(output.id, output.elements, output.width, Kind::Working);
        gradients.insert(output.id, gradient);
        drop(output);
        self.is_recording = false;
        self.run_nodes(0, &mut gradients);
        self.is_recording = true;
    }

    /// Runs `ops` as under `torch.no_grad`.
    pub(super) fn without_gradients(&mut self, ops: impl FnOnce(&mut Self)) {
        let was_recording = std::mem::replace(&mut self.is_recording, false);
        ops(self);
        self.is_recording = was_recording;
    }

    /// Lets go of all gradients of parameters.
    pub(super) fn forget_gradients(&mut self) {
        self.gradients.clear();
    }

    fn run_nodes(&mut self, from: usize, gradients: &mut HashMap<usize, Tensor>) {
        while self.nodes.len() > from {
            let Some(node) = self.nodes.pop() else { return };
            let Some(gradient) = gradients.remove(&node.output) else {
                continue;
            };
            self.counted(node.cost);
            let scratch = (node.scratch > 0).then(|| self.tensor(node.scratch, 1, Kind::Working));
            match &node.backward {
                Backward::Own => {
                    for input in node.inputs.iter().filter(|input| input.needs_gradient) {
                        let own = self.taken(input.id, input.elements, input.width, self.kind);
                        gradients.entry(input.id).or_insert(own);
                    }
                }
                Backward::Shared => {
                    for input in node.inputs.iter().filter(|input| input.needs_gradient) {
                        gradients.entry(input.id).or_insert_with(|| gradient.clone());
                    }
                }
                Backward::Again(body) => self.run_again(&node, body, gradient.clone(), gradients),
            }
            if let Some(parameter) = node.trained {
                self.parameter_gradient(parameter);
            }
            drop(scratch);
            drop(gradient);
        }
    }

    fn run_again(&mut self, node: &Node, body: &Body, gradient: Tensor, gradients: &mut HashMap<usize, Tensor>) {
        let (Some(kept), Some(input)) = (node.saved.first(), node.inputs.first()) else {
            return;
        };
        let mut start = kept.clone();
        if start.buffer.is_none() {
            start = self.taken(input.id, input.elements, input.width, Kind::SavedActivations);
        }
        start.id = self.id();
        start.needs_gradient = true;
        let start_id = start.id;
        let from = self.nodes.len();
        self.is_recording = true;
        let output = body(self, start);
        self.is_recording = false;
        let mut inner = HashMap::new();
        inner.insert(output.id, gradient);
        drop(output);
        self.run_nodes(from, &mut inner);
        if let Some(own) = inner.remove(&start_id) {
            gradients.entry(input.id).or_insert(own);
        }
    }

    fn parameter_gradient(&mut self, parameter: Parameter) {
        let [kept, made] = parameter.widths;
        let fresh = self.tensor(parameter.elements, made, Kind::Gradients);
        if self.drops_gradients {
            return;
        }
        if !self.gradients.contains_key(&parameter.index) {
            let own = match kept == made {
                true => fresh,
                false => self.tensor(parameter.elements, kept, Kind::Gradients),
            };
            self.gradients.insert(parameter.index, own);
        }
    }

    fn rename(&self, tensor: &Tensor, kind: Kind) {
        if let Some(buffer) = &tensor.buffer
            && self.kind != Kind::Logits
        {
            self.heap.borrow_mut().rename(buffer.block, kind);
        }
    }

    fn taken(&mut self, id: usize, elements: u64, width: u64, kind: Kind) -> Tensor {
        let block = self.heap.borrow_mut().take(elements.saturating_mul(width), kind);
        Tensor {
            buffer: Some(Rc::new(Buffer {
                heap: Rc::clone(&self.heap),
                block,
            })),
            id,
            elements,
            width,
            needs_gradient: false,
        }
    }

    /// Counts the cost of an op that makes or reads a [`Tape::tensor`].
    pub(super) fn counted(&mut self, cost: Cost) {
        if self.counts_costs && cost != Cost::default() {
            self.costs.push(cost);
        }
    }

    fn id(&mut self) -> usize {
        self.next += 1;
        self.next
    }
}

fn without_memory(tensor: &Tensor) -> Tensor {
    Tensor {
        buffer: None,
        ..tensor.clone()
    }
}
