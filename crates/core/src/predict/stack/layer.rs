//! A decoder layer as the stacks run it, op by op: what each op saves follows from its derivative.

use super::behaviour::{AttentionForm, Number};
use super::dora::Decomposed;
use super::heap::Kind;
use super::model::{Model, cast, own};
use super::role::Role;
use super::shape::{ExpertShape, LinearShape};
use super::tape::{Backward, Cost, Op, Tape, Tensor};

/// Distance from the index of an adapter's first factor to that of its magnitudes.
const MAGNITUDES: usize = 32;

/// Bytes of a number that PyTorch draws a processor's dropout by, before it is one of the mask.
const DRAWN_BYTES: u64 = 4;

impl Model {
    /// One decoder layer.
    pub(super) fn layer(&self, tape: &mut Tape, index: usize, input: Tensor) -> Tensor {
        let gathered = self.gathered_layer(tape);
        let input = match gathered {
            Some(weights) => hold(tape, &input, &weights),
            None => input,
        };
        let base = index * 64;
        let normed = self.norm(tape, base, &input);
        let mut attended = self.attention(tape, base, &normed);
        drop(normed);
        if self.shape.norms == 4 {
            attended = self.norm(tape, base + 1, &attended);
        }
        let stream = self.add(tape, &input, &attended);
        drop((input, attended));
        let normed = self.norm(tape, base + 2, &stream);
        let mut out = self.mlp(tape, base, &normed);
        drop(normed);
        if self.shape.norms == 4 {
            out = self.norm(tape, base + 3, &out);
        }
        self.add(tape, &stream, &out)
    }

    /// RMSNorm: in F32 and back, or in one kernel.
    pub(super) fn norm(&self, tape: &mut Tape, index: usize, input: &Tensor) -> Tensor {
        let weight = self.is_full().then(|| self.parameter(index, self.shape.hidden));
        let rows = input.elements / self.shape.hidden.max(1);
        if self.setting.fused || self.setting.compiled {
            let moved = Cost::pass(2 * input.bytes());
            return tape.op(Op {
                elements: input.elements,
                width: if self.is_wide { self.compute() } else { input.width },
                inputs: &[input],
                saved: &[input],
                trained: weight,
                cost: [moved, Cost::pass(3 * input.bytes())],
                ..Op::default()
            });
        }
        let wide = cast(tape, input, 4);
        let variance = tape.op(Op {
            elements: rows,
            inputs: &[&wide],
            saved: &[&wide],
            scratch: [wide.bytes(), 0],
            cost: [Cost::pass(3 * wide.bytes()), Cost::pass(3 * wide.bytes())],
            ..Op::default()
        });
        let scaled = tape.op(Op {
            elements: wide.elements,
            inputs: &[&wide, &variance],
            saved: &[&wide, &variance],
            cost: [Cost::pass(2 * wide.bytes()), Cost::pass(4 * wide.bytes())],
            ..Op::default()
        });
        drop((wide, variance));
        let back = cast(tape, &scaled, input.width);
        drop(scaled);
        let width = input.width.max(self.stream());
        let saved: &[&Tensor] = if weight.is_some() { &[&back] } else { &[] };
        tape.op(Op {
            elements: back.elements,
            width,
            inputs: &[&back],
            saved,
            trained: weight,
            cost: [Cost::pass(2 * back.bytes()), Cost::pass(2 * back.bytes())],
            ..Op::default()
        })
    }

    fn attention(&self, tape: &mut Tape, base: usize, input: &Tensor) -> Tensor {
        let shape = &self.shape;
        let (query, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let q = self.linear(
            tape,
            base + 4,
            input,
            LinearShape::new(Role::Query, shape.hidden, query),
        );
        let k = self.linear(tape, base + 6, input, LinearShape::new(Role::Key, shape.hidden, kv));
        let v = self.linear(tape, base + 8, input, LinearShape::new(Role::Value, shape.hidden, kv));
        let (q, k) = match shape.head_norms {
            true => (self.norm(tape, base + 10, &q), self.norm(tape, base + 11, &k)),
            false => (q, k),
        };
        let (q, k) = (self.rotated(tape, q), self.rotated(tape, k));
        let out = match self.setting.attention {
            AttentionForm::Eager => self.eager(tape, q, k, v),
            AttentionForm::Sdpa | AttentionForm::Flash => self.flash(tape, q, k, v),
        };
        self.linear(
            tape,
            base + 12,
            &out,
            LinearShape::new(Role::Output, query, shape.hidden),
        )
    }

    /// `x cos + rotate_half(x) sin`.
    fn rotated(&self, tape: &mut Tape, x: Tensor) -> Tensor {
        if self.setting.fused || self.setting.compiled {
            return own(tape, &x, x.width, Cost::pass(2 * x.bytes()));
        }
        let cosine = own(tape, &x, x.width, Cost::pass(2 * x.bytes()));
        let half = tape.op(Op {
            elements: x.elements,
            width: x.width,
            inputs: &[&x],
            scratch: [x.bytes() / 2, x.bytes()],
            cost: [Cost::pass(3 * x.bytes()), Cost::pass(6 * x.bytes())],
            ..Op::default()
        });
        let sine = own(tape, &half, half.width, Cost::pass(2 * x.bytes()));
        drop(half);
        self.add(tape, &cosine, &sine)
    }

    fn repeated(&self, tape: &mut Tape, x: Tensor) -> Tensor {
        let times = self.shape.heads / self.shape.kv_heads.max(1);
        if times <= 1 {
            return x;
        }
        tape.op(Op {
            elements: x.elements * times,
            width: x.width,
            inputs: &[&x],
            cost: [Cost::pass(x.bytes() * (times + 1)), Cost::pass(x.bytes() * (times + 1))],
            ..Op::default()
        })
    }

    fn eager(&self, tape: &mut Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor {
        let (k, v) = (self.repeated(tape, k), self.repeated(tape, v));
        let [q, k, v] = self.in_products(tape, [q, k, v]);
        let length = self.setting.sequence_length;
        let scores = self.rows * self.shape.heads * length * length;
        let width = q.width;
        let bytes = scores * width;
        let product = Cost {
            flops: 2.0 * scores as f64 * self.shape.head_dim as f64,
            bytes: (bytes + q.bytes() + k.bytes()) as f64,
            launches: 1.0,
            rows: length,
            is_wide: width == 4,
        };
        let raw = tape.op(Op {
            elements: scores,
            width,
            inputs: &[&q, &k],
            saved: &[&q, &k],
            cost: [product, twice(product)],
            ..Op::default()
        });
        drop((q, k));
        let scaled = own(tape, &raw, width, Cost::pass(2 * bytes));
        drop(raw);
        let masked = tape.op(Op {
            elements: scores,
            width,
            inputs: &[&scaled],
            backward: Backward::Own,
            cost: [Cost::pass(3 * bytes), Cost::default()],
            ..Op::default()
        });
        drop(scaled);
        let shares = tape.op(Op {
            elements: scores,
            width: 4,
            inputs: &[&masked],
            saves_output: true,
            // The derivative of softmax begins with a product of gradient and output.
            scratch: [0, 4 * scores],
            cost: [Cost::pass(bytes + 4 * scores), Cost::pass(bytes + 16 * scores)],
            ..Op::default()
        });
        drop(masked);
        let narrow = cast(tape, &shares, width);
        let out = tape.op(Op {
            elements: self.tokens() * self.shape.heads * self.shape.head_dim,
            width,
            inputs: &[&narrow, &v],
            saved: &[&narrow, &v],
            cost: [product, twice(product)],
            ..Op::default()
        });
        drop((narrow, shares, v));
        own(tape, &out, width, Cost::pass(2 * out.bytes()))
    }

    fn flash(&self, tape: &mut Tape, q: Tensor, k: Tensor, v: Tensor) -> Tensor {
        let (k, v) = match self.repeats_heads && self.setting.attention == AttentionForm::Sdpa {
            true => (self.repeated(tape, k), self.repeated(tape, v)),
            false => (k, v),
        };
        let [q, k, v] = self.in_products(tape, [q, k, v]);
        let shape = &self.shape;
        let sums = tape.tensor(self.tokens() * shape.heads, 4, Kind::Working);
        let length = self.setting.sequence_length as f64;
        // Half of the scores are masked and not computed.
        let flops = 2.0 * self.rows as f64 * (shape.heads * shape.head_dim) as f64 * length * length;
        let cost = |factor: f64| Cost {
            flops: factor * flops,
            bytes: factor * (q.bytes() * 2 + k.bytes() + v.bytes()) as f64,
            launches: 1.0,
            rows: self.setting.sequence_length,
            is_wide: q.width == 4,
        };
        let elements = self.tokens() * shape.heads * shape.head_dim;
        tape.op(Op {
            elements,
            width: q.width,
            inputs: &[&q, &k, &v],
            saved: &[&q, &k, &v, &sums],
            saves_output: true,
            // The query's gradient is added up in F32.
            scratch: [0, elements * 4],
            cost: [cost(1.0), cost(2.5)],
            ..Op::default()
        })
    }

    /// Attention's operands in the dtype that its products have.
    fn in_products(&self, tape: &mut Tape, operands: [Tensor; 3]) -> [Tensor; 3] {
        let casts = self.setting.autocast || self.setting.attention == AttentionForm::Flash;
        let width = match casts {
            _ if self.is_wide => Number::F32.bytes(),
            true => self.compute(),
            false => operands[0].width,
        };
        operands.map(|x| cast(tape, &x, width))
    }

    fn mlp(&self, tape: &mut Tape, base: usize, input: &Tensor) -> Tensor {
        let dense = self.shape.dense_width();
        let shared = (dense > 0).then(|| self.dense(tape, base, input, dense));
        let Some(experts) = self.shape.experts else {
            return shared.unwrap_or_else(|| own(tape, input, input.width, Cost::default()));
        };
        let mixed = self.experts(tape, base, input, experts);
        match shared {
            Some(shared) => self.add(tape, &mixed, &shared),
            None => mixed,
        }
    }

    fn dense(&self, tape: &mut Tape, base: usize, input: &Tensor, width: u64) -> Tensor {
        let hidden = self.shape.hidden;
        if !self.shape.is_gated {
            let up = self.linear(tape, base + 16, input, LinearShape::new(Role::Up, hidden, width));
            let active = activated(tape, &up);
            drop(up);
            return self.linear(tape, base + 18, &active, LinearShape::new(Role::Down, width, hidden));
        }
        let gate = self.linear(tape, base + 14, input, LinearShape::new(Role::Gate, hidden, width));
        if self.setting.fused || self.setting.compiled {
            let up = self.linear(tape, base + 16, input, LinearShape::new(Role::Up, hidden, width));
            let [gate, up] = match self.is_wide {
                true => [gate, up].map(|x| cast(tape, &x, Number::F32.bytes())),
                false => [gate, up],
            };
            let product = gated(tape, &gate, &up);
            drop((gate, up));
            return self.linear(tape, base + 18, &product, LinearShape::new(Role::Down, width, hidden));
        }
        let active = activated(tape, &gate);
        drop(gate);
        let up = self.linear(tape, base + 16, input, LinearShape::new(Role::Up, hidden, width));
        let product = gated(tape, &active, &up);
        drop((active, up));
        self.linear(tape, base + 18, &product, LinearShape::new(Role::Down, width, hidden))
    }

    /// Experts on the rows that the router sends them; adapters on experts are not part of any row here.
    fn experts(&self, tape: &mut Tape, base: usize, input: &Tensor, experts: ExpertShape) -> Tensor {
        let (hidden, width) = (self.shape.hidden, experts.width);
        let rows = self.tokens() * experts.active;
        let taken = tape.op(Op {
            elements: rows * hidden,
            width: input.width,
            inputs: &[input],
            cost: [Cost::pass(2 * rows * hidden * 2), Cost::pass(2 * rows * hidden * 2)],
            ..Op::default()
        });
        let product = |tape: &mut Tape, index: usize, x: &Tensor, inner: u64, outer: u64| {
            let trained = self.is_full().then(|| self.parameter(index, inner * outer));
            let saved: &[&Tensor] = if trained.is_some() { &[x] } else { &[] };
            let cost = self.product_cost(rows, inner, outer);
            tape.op(Op {
                elements: rows * outer,
                width: x.width,
                inputs: &[x],
                saved,
                trained,
                cost: [cost, cost],
                ..Op::default()
            })
        };
        let gate = product(tape, base + 20, &taken, hidden, width);
        let active = activated(tape, &gate);
        drop(gate);
        let up = product(tape, base + 21, &taken, hidden, width);
        drop(taken);
        let both = gated(tape, &active, &up);
        drop((active, up));
        let down = product(tape, base + 22, &both, width, hidden);
        drop(both);
        let weighted = gated(tape, &down, &down);
        drop(down);
        tape.op(Op {
            elements: input.elements,
            width: input.width,
            inputs: &[&weighted],
            cost: [Cost::pass(2 * weighted.bytes()), Cost::pass(2 * weighted.bytes())],
            ..Op::default()
        })
    }

    /// A linear layer with its adapter, as PEFT has it.
    pub(super) fn linear(&self, tape: &mut Tape, index: usize, input: &Tensor, layer: LinearShape) -> Tensor {
        let result = self.base_linear(tape, index, input, layer.inner, layer.outer);
        self.adapted(tape, index, layer, input, result)
    }

    fn base_linear(&self, tape: &mut Tape, index: usize, input: &Tensor, inner: u64, outer: u64) -> Tensor {
        let setting = &self.setting;
        let rows = input.elements / inner.max(1);
        let cost = self.product_cost(rows, inner, outer);
        if setting.weights.is_quantized() {
            let narrow = cast(tape, input, self.compute());
            let unpacked = inner * outer * self.compute();
            let unpacking = Cost {
                bytes: cost.bytes + (unpacked * 2 + unpacked / 4) as f64,
                launches: 2.0,
                ..cost
            };
            let out = tape.op(Op {
                elements: rows * outer,
                width: self.compute(),
                inputs: &[&narrow],
                scratch: [if self.keeps_unpacked() { 0 } else { unpacked }, unpacked],
                cost: [unpacking, unpacking],
                ..Op::default()
            });
            drop(narrow);
            return match setting.weights.is_bitsandbytes() {
                true => cast(tape, &out, input.width),
                false => out,
            };
        }
        let width = if setting.autocast { self.compute() } else { input.width };
        let operand = cast(tape, input, width);
        // Autocast makes a copy of a weight of another dtype, which the input's gradient needs again.
        let is_copied = setting.autocast && setting.loads.bytes() != width;
        let copy = is_copied.then(|| tape.tensor(inner * outer, width, Kind::Working));
        let trained = self.is_full().then(|| self.parameter(index, inner * outer));
        let mut saved: Vec<&Tensor> = copy.iter().collect();
        if trained.is_some() {
            saved.push(&operand);
        }
        let cost = Cost {
            is_wide: width == 4,
            ..cost
        };
        let back = if trained.is_some() { twice(cost) } else { cost };
        tape.op(Op {
            elements: rows * outer,
            width,
            inputs: &[&operand],
            saved: &saved,
            trained,
            cost: [cost, back],
            ..Op::default()
        })
    }

    /// The result of a layer without its adapter, and what the adapter adds to it, where it has one.
    fn adapted(&self, tape: &mut Tape, index: usize, layer: LinearShape, input: &Tensor, result: Tensor) -> Tensor {
        let LinearShape { role, inner, outer } = layer;
        let Some((rank, has_dropout)) = self.adapter(role) else {
            return result;
        };
        let setting = &self.setting;
        let is_bitsandbytes = setting.weights.is_bitsandbytes();
        let result = match is_bitsandbytes && !self.fuses_lora() {
            true => tape.op(Op {
                elements: result.elements,
                width: result.width,
                inputs: &[&result],
                backward: Backward::Shared,
                cost: [Cost::pass(2 * result.bytes()), Cost::default()],
                ..Op::default()
            }),
            false => result,
        };
        let width = setting.adapters.bytes();
        let parameters =
            [(index, rank * inner), (index + 1, rank * outer)].map(|(index, size)| self.parameter(index, size));
        let product_width = if setting.autocast { self.compute() } else { width };
        let wide = match self.fuses_lora() || (is_bitsandbytes && setting.autocast) {
            true => cast(tape, input, product_width),
            false => cast(tape, input, width),
        };
        let kept = if has_dropout {
            self.dropped(tape, &wide)
        } else {
            wide.clone()
        };
        let decomposed = setting.dora.then(|| Decomposed {
            rank,
            inner,
            outer,
            has_dropout,
            magnitudes: self.parameter(index + MAGNITUDES, outer),
            widths: [width, product_width],
        });
        let norms = decomposed.map(|layer| (layer, self.row_norms(tape, &layer, kept.width), kept.clone()));
        let operand = cast(tape, &kept, product_width);
        drop(kept);
        let rows = input.elements / inner.max(1);
        let is_wide = product_width == 4;
        let [down, up] = [(inner, rank), (rank, outer)].map(|(inner, outer)| Cost {
            is_wide,
            ..self.product_cost(rows, inner, outer)
        });
        // Autocast's copies of the factors, which their inputs' gradients need again.
        let mut copy = |elements: u64| {
            let is_copied = product_width != width;
            is_copied.then(|| tape.tensor(elements, product_width, Kind::Working))
        };
        let copies = [copy(rank * inner), copy(rank * outer)];
        let mut saved = vec![&operand];
        saved.extend(&copies[0]);
        let low = tape.op(Op {
            elements: rows * rank,
            width: product_width,
            inputs: &[&operand],
            saved: &saved,
            trained: Some(parameters[0]),
            cost: [down, twice(down)],
            ..Op::default()
        });
        drop(operand);
        let mut saved = vec![&low];
        saved.extend(&copies[1]);
        if self.fuses_lora() {
            // The update is added into the base's output.
            return tape.op(Op {
                inputs: &[&result, &low],
                saved: &saved,
                backward: Backward::Shared,
                trained: Some(parameters[1]),
                cost: [up, twice(up)],
                ..Op::default()
            });
        }
        let update = tape.op(Op {
            elements: rows * outer,
            width: product_width,
            inputs: &[&low],
            saved: &saved,
            trained: Some(parameters[1]),
            cost: [up, twice(up)],
            ..Op::default()
        });
        drop(low);
        if let Some((layer, norms, kept)) = norms {
            return self.decomposed(tape, &layer, [result, kept, update], norms);
        }
        let scaled = own(tape, &update, update.width, Cost::pass(2 * update.bytes()));
        drop(update);
        let scaled = match is_bitsandbytes && !setting.autocast {
            true => cast(tape, &scaled, result.width),
            false => scaled,
        };
        let sum = self.add(tape, &result, &scaled);
        let width = result.width;
        drop((scaled, result));
        match is_bitsandbytes {
            true => sum,
            false => cast(tape, &sum, width),
        }
    }

    /// Dropout, with its mask: a GPU keeps a byte for each element, a processor a factor in the input's dtype.
    fn dropped(&self, tape: &mut Tape, input: &Tensor) -> Tensor {
        let width = if self.is_host { input.width } else { 1 };
        let mask = tape.tensor(input.elements, width, Kind::Working);
        if self.is_host {
            drop(tape.tensor(input.elements, DRAWN_BYTES, Kind::Working));
        }
        tape.op(Op {
            elements: input.elements,
            width: input.width,
            inputs: &[input],
            saved: &[&mask],
            cost: [Cost::pass(3 * input.bytes()), Cost::pass(3 * input.bytes())],
            ..Op::default()
        })
    }

    /// The weights of a layer that devices share out, gathered for its passes.
    fn gathered_layer(&self, tape: &mut Tape) -> Option<Tensor> {
        let [weights, ..] = self.setting.shares();
        (weights > 1).then(|| tape.tensor(self.gathered_bytes(self.layer_bytes()), 1, Kind::Working))
    }
}

fn activated(tape: &mut Tape, input: &Tensor) -> Tensor {
    tape.op(Op {
        elements: input.elements,
        width: input.width,
        inputs: &[input],
        saved: &[input],
        cost: [Cost::pass(2 * input.bytes()), Cost::pass(3 * input.bytes())],
        ..Op::default()
    })
}

fn gated(tape: &mut Tape, left: &Tensor, right: &Tensor) -> Tensor {
    tape.op(Op {
        elements: left.elements,
        width: left.width,
        inputs: &[left, right],
        saved: &[left, right],
        cost: [Cost::pass(3 * left.bytes()), Cost::pass(5 * left.bytes())],
        ..Op::default()
    })
}

fn twice(cost: Cost) -> Cost {
    Cost {
        flops: 2.0 * cost.flops,
        bytes: 2.0 * cost.bytes,
        launches: 2.0 * cost.launches,
        ..cost
    }
}

/// Puts a node behind the tensor that holds `other` until its backward pass has run.
fn hold(tape: &mut Tape, tensor: &Tensor, other: &Tensor) -> Tensor {
    tape.op(Op {
        inputs: &[tensor],
        saved: &[other],
        backward: Backward::Shared,
        ..Op::default()
    })
}

#[cfg(test)]
mod tests;
