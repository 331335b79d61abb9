//! What layers have from each other beside the stream: shared keys and values, and inputs of their own; in the engine's order.
//!
//! | letter | meaning |
//! |---|---|
//! | P, L | width of a layer's input, layers |

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Stage};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::architecture::LayerInputs;
use crate::plan::{KeySharing, LayerPlan, SavedTensor, Vectors};

use MemoryCategory::{SavedActivations, Scratch};

impl StepTracer<'_> {
    /// Bytes of the keys and values of a layer that later ones read, which are held until its backward pass.
    pub(super) fn shared_bytes(&self, kind: &LayerPlan) -> u64 {
        match kind.sharing {
            KeySharing::Source { .. } => self.act(kind.heads.key_size() + kind.heads.value_size()),
            KeySharing::None | KeySharing::Reader { .. } => 0,
        }
    }

    /// What becomes of the gradients of shared keys and values, which are in the scratch.
    pub(super) fn share_gradients(&self, trace: &mut Trace, kind: &LayerPlan) {
        let widths = [kind.heads.key_size(), kind.heads.value_size()];
        let adds = match kind.sharing {
            KeySharing::None => false,
            KeySharing::Source { gradients } => gradients,
            KeySharing::Reader { gradients, last } => gradients && !last,
        };
        for width in widths {
            if adds {
                trace.hold(Scratch, self.act(width));
                self.pass(trace, Module::QueryKeyValue, Pass::Add, width);
                trace.free(Scratch, self.act(2 * width));
            }
            if matches!(kind.sharing, KeySharing::Reader { gradients: false, .. }) {
                trace.free(Scratch, self.act(width));
            }
        }
    }

    /// Where the stream behind the MLP goes: a gate of the layer's own input that trains reads it once more.
    pub(super) fn stream_behind(&self, kind: &LayerPlan, kept: MemoryCategory) -> MemoryCategory {
        match &kind.input {
            Some(input) if input.gate.reads_input() => kept,
            _ => Scratch,
        }
    }

    /// What a layer does with its own input: the stream, in the scratch unless it [is kept](Self::stream_behind), is replaced; what
    /// backward reads into `kept`.
    pub(super) fn input_forward(&self, trace: &mut Trace, kind: &LayerPlan, kept: MemoryCategory) {
        let Some(input) = &kind.input else { return };
        let (hidden, width) = (self.plan.architecture.hidden_size, input.gate.outputs());
        self.group_forward(trace, (&input.gate, Module::GateUp), kept, Target::New(kept));
        trace.hold(Scratch, self.act(width));
        self.pass(trace, Module::GateUp, Pass::Copy, width);
        trace.hold(Scratch, self.act(width));
        self.pass(trace, Module::GateUp, Pass::GluForward, width);
        trace.free(Scratch, self.act(width));
        self.out(trace, (&input.projection, Module::Down), kept, Scratch);
        trace.free(Scratch, self.act(width));
        if !input.gate.reads_input() {
            trace.free(Scratch, self.act(hidden));
        }
    }

    /// Backward through it: dy, in the scratch, is replaced.
    pub(super) fn input_backward(&self, trace: &mut Trace, kind: &LayerPlan) {
        let Some(input) = &kind.input else { return };
        let (hidden, width) = (self.plan.architecture.hidden_size, input.gate.outputs());
        let d_projected = self.backward_behind(trace);
        trace.hold(Scratch, self.act(width));
        self.pass(trace, Module::GateUp, Pass::Copy, width);
        let inner = |trace: &mut Trace| {
            trace.hold(Scratch, self.act(width));
            self.pass(trace, Module::GateUp, Pass::GluForward, width);
            self.act(width)
        };
        self.group_backward(trace, (&input.projection, Module::Down), inner, d_projected, true);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::InputProjectionXa]));
        if self.host.vectors == Vectors::None {
            trace.rename(SavedActivations, Scratch, self.act(width));
        } else {
            trace.hold(Scratch, self.act(2 * width));
            trace.free(Scratch, self.act(width));
            trace.free(SavedActivations, self.act(width));
        }
        self.pass(trace, Module::GateUp, Pass::GluBackward, width);
        trace.free(Scratch, self.act(2 * width));
        let d_gate = self.act(width);
        self.group_backward(trace, (&input.gate, Module::GateUp), |_| 0, d_gate, true);
        trace.hold(Scratch, self.act(hidden));
        self.pass(trace, Module::Norms, Pass::Add, hidden);
        trace.free(Scratch, self.act(2 * hidden));
        let freed = [SavedTensor::InputStream, SavedTensor::InputGateXa];
        trace.free(SavedActivations, self.saved(kind, &freed));
    }

    /// L·P
    fn input_width(&self, inputs: LayerInputs) -> usize {
        inputs.width * self.plan.layers.len()
    }

    /// Bytes of the inputs of all layers, which are held from the beginning to the end; 0 where there are none.
    pub(super) fn input_bytes(&self) -> u64 {
        let inputs = self.plan.architecture.layer_inputs;
        inputs.map_or(0, |inputs| self.act(self.input_width(inputs)))
    }

    /// The inputs of all layers from the embedded tokens.
    pub(super) fn make_inputs(&self, trace: &mut Trace) {
        let Some(inputs) = self.plan.architecture.layer_inputs else {
            return;
        };
        let width = self.input_width(inputs);
        let all = self.act(width);
        self.project_inputs(trace, inputs);
        trace.free(
            Scratch,
            all + self.wide(self.plan.layers.len()) + self.act(self.plan.inputs.ranks()),
        );
        let wide = match self.plan.input_table_trains && self.c() < 4 {
            true => self.wide(width),
            false => 0,
        };
        trace.hold(Scratch, wide);
        trace.hold(Scratch, all);
        trace.free(Scratch, wide);
        self.pass(trace, Module::Embedding, Pass::Gather, width);
        trace.spike(Scratch, all);
        self.pass(trace, Module::Embedding, Pass::Copy, width);
        trace.hold(Scratch, all);
        self.pass(trace, Module::Embedding, Pass::Add, width);
        trace.free(Scratch, 2 * all);
        trace.hold(SavedActivations, all);
        self.pass(trace, Module::Embedding, Pass::Copy, width);
        trace.free(Scratch, all);
    }

    /// What the norm of the inputs reads, gives and keeps, and xa of the projection's adapter, into the scratch.
    fn project_inputs(&self, trace: &mut Trace, inputs: LayerInputs) {
        let width = self.input_width(inputs);
        self.group_forward(
            trace,
            (&self.plan.inputs, Module::GateUp),
            Scratch,
            Target::New(Scratch),
        );
        trace.spike(Scratch, self.act(width));
        self.pass(trace, Module::Embedding, Pass::Copy, width);
        trace.hold(Scratch, self.act(width) + self.wide(self.plan.layers.len()));
        self.norm_pass(trace, Pass::NormForward, width);
    }

    /// The gradients of what makes the inputs, from theirs in the scratch; frees the inputs, and the embedded tokens' gradient.
    pub(super) fn inputs_backward(&self) -> Trace {
        let mut whole = Trace::new(Stage::Backward);
        let (trace, Some(inputs)) = (&mut whole, self.plan.architecture.layer_inputs) else {
            return whole;
        };
        trace.free(SavedActivations, self.input_bytes());
        if !self.plan.inputs_train {
            return whole;
        }
        let (width, hidden) = (self.input_width(inputs), self.plan.architecture.hidden_size);
        let (all, embedded) = (self.act(width), self.act(hidden));
        trace.hold(Scratch, embedded);
        trace.spike(Scratch, embedded);
        self.pass(trace, Module::Embedding, Pass::Gather, hidden);
        self.pass(trace, Module::Embedding, Pass::Copy, hidden);
        trace.spike(Scratch, all);
        self.pass(trace, Module::Embedding, Pass::Copy, width);
        if self.plan.input_table_trains {
            trace.spike(Scratch, all);
            self.pass(trace, Module::Embedding, Pass::Add, width);
        }
        self.project_inputs(trace, inputs);
        trace.free(Scratch, all);
        trace.hold(Scratch, all);
        trace.spike(Scratch, self.wide(self.plan.layers.len()));
        self.norm_pass(trace, Pass::NormBackward, width);
        // What the norm read, and the gradient of what it gave.
        trace.free(Scratch, 2 * all);
        trace.spike(Scratch, all);
        self.pass(trace, Module::Embedding, Pass::Copy, width);
        let wants = self.plan.embedding_trains;
        self.group_backward(trace, (&self.plan.inputs, Module::GateUp), |_| embedded, all, wants);
        trace.free(
            Scratch,
            self.wide(self.plan.layers.len()) + self.act(self.plan.inputs.ranks()),
        );
        if !self.plan.inputs.reads_input() {
            trace.free(Scratch, embedded);
        }
        if wants {
            trace.hold(Scratch, embedded);
            self.pass(trace, Module::Embedding, Pass::Add, hidden);
            // What the sum reads, and the sum.
            trace.free(Scratch, 3 * embedded);
        }
        whole
    }
}
