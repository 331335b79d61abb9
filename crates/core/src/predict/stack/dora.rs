//! DoRA on a linear layer, as PEFT's `DoraLinearLayer` runs it (0.21, `tuners/lora/dora.py`); torchtune's is the same.
//!
//! With magnitudes m and row norms n of W + s B A, both one number a row of W, the layer gives
//!
//! ```text
//! y + (m / n - 1) y + (m / n) s B A x,    y = W x
//! ```
//!
//! Beside what LoRA keeps, the node of each product keeps its factors: y, B A x, and three vectors. The norms take much more for a
//! moment: B A is made of a unit matrix as large as the layer is wide, and W is written out in the dtype of x. With dropout y
//! is computed once more, from the dropped x, and that node keeps the written-out W until the backward pass.

use super::heap::Kind;
use super::model::{Model, cast, own};
use super::tape::{Backward, Cost, Op, Parameter, Tape, Tensor};

/// A linear layer with DoRA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decomposed {
    pub(super) rank: u64,
    /// Columns and rows of W.
    pub(super) inner: u64,
    pub(super) outer: u64,
    pub(super) has_dropout: bool,
    /// The magnitudes.
    pub(super) magnitudes: Parameter,
    /// Bytes of a number of LoRA's factors, and of a number in their products.
    pub(super) widths: [u64; 2],
}

/// Tensors that the norms leave: the last two are let go when the layer's output is there.
pub(super) struct RowNorms {
    norms: Tensor,
    /// W in the dtype of x; `None` where that is W itself.
    weight: Option<Tensor>,
    _graph: Vec<Tensor>,
}

impl Model {
    /// The norms of W + s B A for an input in numbers of `width` bytes, for which no gradient is computed.
    pub(super) fn row_norms(&self, tape: &mut Tape, layer: &Decomposed, width: u64) -> RowNorms {
        let Decomposed { rank, inner, outer, .. } = *layer;
        let [own_width, product_width] = layer.widths;
        let unit = alone(tape, inner * inner, own_width, Cost::pass(inner * inner * own_width));
        let operand = cast(tape, &unit, product_width);
        let [down, up] = [(inner, rank), (rank, outer)].map(|(from, to)| self.product_cost(inner, from, to));
        let low = alone(tape, inner * rank, product_width, down);
        let delta = alone(tape, inner * outer, product_width, up);
        let delta = cast(tape, &delta, width);
        let weight = self.written_out(tape, inner * outer, width);
        let pass = Cost::pass(2 * inner * outer * width);
        let scaled = alone(tape, inner * outer, width, pass);
        let sum = alone(tape, inner * outer, width, pass);
        drop(scaled);
        let norms = alone(tape, outer, width, pass);
        drop(sum);
        // The graph of B A lives as long as B A does, though nobody goes back through it.
        let _graph = vec![operand, low, delta];
        RowNorms { norms, weight, _graph }
    }

    /// W in numbers of `width` bytes, where it is not stored so.
    fn written_out(&self, tape: &mut Tape, elements: u64, width: u64) -> Option<Tensor> {
        let setting = &self.setting;
        let stored = match setting.weights.is_quantized() {
            true => None,
            false => Some(setting.loads.bytes()),
        };
        match stored {
            Some(stored) if stored == width => None,
            Some(stored) => Some(alone(tape, elements, width, Cost::pass(elements * (stored + width)))),
            None => {
                let narrow = alone(tape, elements, self.compute(), Cost::pass(elements * self.compute()));
                Some(cast(tape, &narrow, width))
            }
        }
    }

    /// The layer's output from y, x behind its dropout and B A x.
    pub(super) fn decomposed(
        &self,
        tape: &mut Tape,
        layer: &Decomposed,
        [result, dropped, update]: [Tensor; 3],
        found: RowNorms,
    ) -> Tensor {
        let RowNorms { norms, weight, _graph } = found;
        let scale = tape.op(Op {
            elements: layer.outer,
            width: layer.widths[0].max(norms.width),
            inputs: &[],
            saved: &[&norms],
            trained: Some(layer.magnitudes),
            ..Op::default()
        });
        drop(norms);
        let base = match layer.has_dropout && self.setting.stack.dora_drops_inputs {
            true => self.base_again(tape, layer, &dropped, weight),
            false => result.clone(),
        };
        drop(dropped);
        let less = own(tape, &scale, scale.width, Cost::pass(2 * scale.bytes()));
        let left = scaled(tape, &less, &base);
        drop((less, base));
        let right = scaled(tape, &scale, &update);
        drop((scale, update));
        let right = own(tape, &right, right.width, Cost::pass(2 * right.bytes()));
        let difference = self.add(tape, &left, &right);
        drop((left, right, _graph));
        let sum = self.add(tape, &result, &difference);
        drop(difference);
        let width = result.width;
        drop(result);
        // Layers of bitsandbytes give what they have under autocast.
        match self.setting.weights.is_bitsandbytes() && self.setting.autocast {
            true => sum,
            false => cast(tape, &sum, width),
        }
    }

    /// y from the dropped x.
    fn base_again(&self, tape: &mut Tape, layer: &Decomposed, dropped: &Tensor, weight: Option<Tensor>) -> Tensor {
        let width = if self.setting.autocast {
            self.compute()
        } else {
            dropped.width
        };
        let operand = cast(tape, dropped, width);
        let elements = layer.inner * layer.outer;
        let weight = match weight {
            Some(weight) => Some(cast(tape, &weight, width)),
            None if self.setting.loads.bytes() != width => {
                Some(alone(tape, elements, width, Cost::pass(elements * width)))
            }
            None => None,
        };
        let rows = dropped.elements / layer.inner.max(1);
        let cost = self.product_cost(rows, layer.inner, layer.outer);
        let cost = Cost {
            is_wide: width == 4,
            ..cost
        };
        let saved: Vec<&Tensor> = weight.iter().collect();
        tape.op(Op {
            elements: rows * layer.outer,
            width,
            inputs: &[&operand],
            saved: &saved,
            cost: [cost, cost],
            ..Op::default()
        })
    }
}

/// A tensor that no gradient goes through.
fn alone(tape: &mut Tape, elements: u64, width: u64, cost: Cost) -> Tensor {
    tape.counted(cost);
    tape.tensor(elements, width, Kind::Working)
}

/// Each row of `x` times `scale`, in the wider of their dtypes. Both gradients begin with a product as large as the output.
fn scaled(tape: &mut Tape, scale: &Tensor, x: &Tensor) -> Tensor {
    let width = scale.width.max(x.width);
    let bytes = x.elements * width;
    tape.op(Op {
        elements: x.elements,
        width,
        inputs: &[scale, x],
        saved: &[scale, x],
        backward: Backward::Own,
        scratch: [0, bytes],
        cost: [Cost::pass(x.bytes() + bytes), Cost::pass(2 * x.bytes() + 3 * bytes)],
        ..Op::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::behaviour::{Number, StackBehaviour};
    use super::super::heap::Heap;
    use super::super::role::Role;
    use super::super::setting::{StackSetting, Trains};
    use super::super::shape::{LinearShape, ModelShape};
    use super::super::weight_form::WeightForm;
    use super::*;

    /// Highest bytes of tensors while a layer of 512 x 1536 runs forward on one row.
    fn peak(loads: Number) -> u64 {
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.loads, setting.computes, setting.dora) = (loads, loads, true);
        setting.trains = Trains::Adapters {
            rank: 4,
            targets: vec![Role::Query],
            has_dropout: false,
            whole_embeddings: false,
        };
        let config = r#"{"model_type": "llama", "hidden_size": 1536, "num_hidden_layers": 1, "num_attention_heads": 8,
            "intermediate_size": 1536, "vocab_size": 512}"#;
        let model = Model {
            shape: ModelShape::from_json("config.json", &serde_json::from_str(config).unwrap()).unwrap(),
            setting,
            repeats_heads: false,
            is_wide: false,
            is_host: false,
            rows: 1,
        };
        let mut tape = Tape::new(Heap::new(None));
        let input = tape.shared(1536, loads.bytes(), true);
        let output = model.linear(&mut tape, 0, &input, LinearShape::new(Role::Query, 1536, 512));
        assert_eq!((output.elements, output.width), (512, loads.bytes()));
        tape.heap().peaks().tensors
    }

    #[test]
    fn the_row_norms_take_what_they_take_in_peft() {
        // By `tests/golden/stack_saved.py`; a GPU's allocator rounds each tensor up to 512 bytes.
        for (loads, expected) in [(Number::F32, 18_900_992_u64), (Number::Half, 22_051_840)] {
            let found = peak(loads);
            assert!(
                found.abs_diff(expected) < 16 * 512,
                "{loads:?}: {found}, not {expected}"
            );
        }
    }
}
