//! A model in a setting, by the sizes of all that goes through it, and the ops that its parts share.

use super::behaviour::{AttentionForm, Number, Raised, Recompute};
use super::heap::Kind;
use super::role::Role;
use super::setting::{StackSetting, Trains};
use super::shape::{LinearShape, ModelShape};
use super::tape::{Backward, Cost, Op, Parameter, Tape, Tensor};

/// A model in a setting: sizes of everything that goes through a layer.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) shape: ModelShape,
    pub(super) setting: StackSetting,
    /// Key and value heads are written out for each query head: PyTorch's memory-efficient attention takes no others.
    pub(super) repeats_heads: bool,
    /// The residual stream, attention and the MLP's activation are in F32 beside products of 16 bits, which would overflow.
    pub(super) is_wide: bool,
    /// The model trains on the host's own processor.
    pub(super) is_host: bool,
    /// Rows of a micro-batch; of rows that are compared, all of their sequences.
    pub(super) rows: u64,
}

impl Model {
    pub(super) fn tokens(&self) -> u64 {
        self.rows * self.setting.sequence_length
    }

    /// Bytes of a number in products.
    pub(super) fn compute(&self) -> u64 {
        self.setting.computes.bytes()
    }

    /// Numbers of embedding and head.
    pub(super) fn plain(&self) -> Number {
        self.unless_raised(self.setting.raises == Raised::All)
    }

    /// Bytes of a number in norms, and so in the residual stream.
    pub(super) fn stream(&self) -> u64 {
        match self.is_wide {
            true => Number::F32.bytes(),
            false => self.unless_raised(self.setting.raises != Raised::Nothing).bytes(),
        }
    }

    fn unless_raised(&self, is_raised: bool) -> Number {
        // PEFT's preparation leaves models in GPTQ as they are.
        if self.setting.weights.is_bitsandbytes() && is_raised {
            Number::F32
        } else {
            self.setting.loads
        }
    }

    /// Tokens whose words are told: all but the last of each row.
    pub(super) fn scored(&self) -> u64 {
        self.rows * (self.setting.sequence_length - 1).max(1)
    }

    /// The model with its adapters off, as the reference has it that is no model of its own.
    pub(super) fn without_adapters(&self) -> Self {
        let mut base = self.clone();
        if let Trains::Adapters {
            targets,
            whole_embeddings,
            ..
        } = &mut base.setting.trains
        {
            targets.clear();
            *whole_embeddings = false;
        }
        base.setting.dora = false;
        base
    }

    pub(super) fn is_full(&self) -> bool {
        self.setting.trains == Trains::Everything
    }

    pub(super) fn adapter(&self, role: Role) -> Option<(u64, bool)> {
        match &self.setting.trains {
            Trains::Adapters {
                rank,
                targets,
                has_dropout,
                ..
            } if targets.contains(&role) => Some((*rank, *has_dropout)),
            _ => None,
        }
    }

    /// Whether LoRA's products are written by hand. DoRA's are not, whatever the stack does otherwise.
    pub(super) fn fuses_lora(&self) -> bool {
        self.setting.fused_lora && !self.setting.dora
    }

    /// Whether quantized weights are unpacked into one buffer, which stays: that of layers which the stack writes itself.
    pub(super) fn keeps_unpacked(&self) -> bool {
        self.setting.stack.own_layers.is_some() && self.fuses_lora() && self.setting.weights.is_quantized()
    }

    pub(super) fn add(&self, tape: &mut Tape, left: &Tensor, right: &Tensor) -> Tensor {
        let width = left.width.max(right.width);
        let backward = if left.width == right.width {
            Backward::Shared
        } else {
            Backward::Own
        };
        let moved = left.bytes() + right.bytes() + left.elements * width;
        tape.op(Op {
            elements: left.elements,
            width,
            inputs: &[left, right],
            backward,
            cost: [Cost::pass(moved), Cost::pass(left.bytes())],
            ..Op::default()
        })
    }

    pub(super) fn parameter(&self, index: usize, elements: u64) -> Parameter {
        let [_, gradients, _] = self.setting.shares();
        let own = match self.setting.trains {
            Trains::Everything => self.setting.loads.bytes(),
            Trains::Adapters { .. } => self.setting.adapters.bytes(),
        };
        let made = match self.setting.autocast {
            true => self.compute(),
            false => own,
        };
        Parameter {
            index,
            elements: elements.div_ceil(gradients),
            widths: [own, made],
        }
    }

    /// A parameter of the base model that is trained beside adapters: it keeps the dtype that it was loaded in.
    pub(super) fn whole_parameter(&self, index: usize, elements: u64) -> Parameter {
        let width = self.plain().bytes();
        Parameter {
            widths: [width, width],
            ..self.parameter(index, elements)
        }
    }

    pub(super) fn product_cost(&self, rows: u64, inner: u64, outer: u64) -> Cost {
        let moved = rows * inner + inner * outer + rows * outer;
        Cost {
            flops: 2.0 * rows as f64 * inner as f64 * outer as f64,
            bytes: (moved * self.compute()) as f64,
            launches: 1.0,
            rows: rows.min(inner).min(outer),
            is_wide: self.setting.computes == Number::F32,
        }
    }

    /// Bytes of a layer's weights as they are gathered.
    pub(super) fn layer_bytes(&self) -> u64 {
        let linear: u64 = self.shape.linears().iter().map(LinearShape::elements).sum();
        let held = self.shape.held(linear + self.shape.expert_elements());
        let [codes, constants] = self.setting.weights.bytes(held, self.setting.loads);
        codes + constants + self.shape.small_elements() * self.plain().bytes()
    }

    /// Bytes that so many of weights take while they are gathered: themselves and, where the host holds the share of the device, its copy
    /// that is sent from.
    pub(super) fn gathered_bytes(&self, bytes: u64) -> u64 {
        let [share, ..] = self.setting.shares();
        let copied = if self.setting.offloads {
            bytes.div_ceil(share)
        } else {
            0
        };
        bytes + copied
    }

    /// The mask that eager attention adds to scores, one for each row.
    pub(super) fn mask(&self, tape: &mut Tape) -> Option<Tensor> {
        let length = self.setting.sequence_length;
        let is_there = self.setting.attention == AttentionForm::Eager;
        is_there.then(|| tape.tensor(self.rows * length * length, self.stream(), Kind::Working))
    }

    /// Whether layers are computed again.
    pub(super) fn runs_again(&self) -> bool {
        self.setting.recompute != Recompute::Nothing
    }
}

/// `tensor` in numbers of `width` bytes: itself where it has them.
pub(super) fn cast(tape: &mut Tape, tensor: &Tensor, width: u64) -> Tensor {
    if tensor.width == width {
        return tensor.clone();
    }
    own(
        tape,
        tensor,
        width,
        Cost::pass(tensor.elements * (tensor.width + width)),
    )
}

/// An op of one input whose output and gradient have tensors of their own, and that saves nothing.
pub(super) fn own(tape: &mut Tape, input: &Tensor, width: u64, cost: Cost) -> Tensor {
    tape.op(Op {
        elements: input.elements,
        width,
        inputs: &[input],
        cost: [cost, cost],
        ..Op::default()
    })
}
