//! The gated delta rule (Yang et al. 2024, <https://arxiv.org/abs/2412.06464>): attention whose keys and values are folded into one
//! matrix for each head, so that a token costs the same wherever it stands.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `mixed` | (T, 2 Hk dk + Hv dv) | queries, keys and values of each token, one behind the other; compute dtype |
//! | `a`, `b` | (T, Hv) | what decides decay and beta; compute dtype |
//! | `rate`, `shift` | (Hv,) | log of the decay's rate, and what is added to a (`A_log`, `dt_bias`) |
//! | `o`, `d_o` | (T, Hv dv) | result and its gradient; compute dtype |
//! | S | (dk, dv) F32 | state of a head, 0 at the start of each document |
//!
//! Value head h reads key head h Hk / Hv. With q and k brought to length 1 (q then divided by sqrt(dk)),
//! alpha = exp(-exp(rate) softplus(a + shift)) and beta = sigmoid(b), each token does
//!
//! P = alpha S, r = v - P^T k, S = P + k (beta r)^T, o = S^T q.
//!
//! The backward pass goes through the tokens from the last to the first. With dS what later tokens gave:
//! dS += q do^T, dq = S do, d(beta r) = dS^T k, dk = dS (beta r); then dP = dS - k (beta d(beta r))^T,
//! dk -= P (beta d(beta r)), d(log alpha) = <dP, P>, and dS = alpha dP for the token before.
//!
//! Nothing but the inputs is kept. States are made again: those of every n-th token first, n the root of the document's length, then
//! those of n tokens at a time, so that memory grows with that root. A task is a key head of a document with the value heads that read it.

pub mod reference;
#[cfg(test)]
mod tests;

use super::attention::{Rows, Shared, gather};
use super::element::{Element, with_element};
use super::shape;
use super::simd::{multiversion, sum2};
use super::storage::{Elements, Unwritten, is_fused, small, update};
use crate::thread_pool;
use candle_core::{Result, Tensor};

/// Number that is added to the square of a query's or key's length.
const EPSILON: f32 = 1e-6;

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Hk, heads of queries and keys; divides Hv.
    pub keys: usize,
    /// Hv
    pub values: usize,
    /// dk
    pub key_width: usize,
    /// dv
    pub value_width: usize,
}

/// Tensors that the rule reads.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub mixed: &'a Tensor,
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    pub rate: &'a Tensor,
    pub shift: &'a Tensor,
    pub heads: Heads,
    /// (documents + 1,): start of each document; the last entry is the stream's length.
    pub offsets: &'a [u32],
}

/// Gradients of what trains or has something below it that does.
#[derive(Debug)]
pub struct Gradients {
    pub mixed: Tensor,
    pub a: Tensor,
    pub b: Tensor,
}

/// o. With `states`, (documents, Hv, dk, dv) F32, each document goes on from its own, which then are those behind its last token.
///
/// # Errors
/// Shapes that do not go together.
pub fn forward(inputs: &Inputs<'_>, states: Option<&Tensor>) -> Result<Tensor> {
    let tokens = inputs.check(states)?;
    if !is_fused(inputs.mixed) {
        return reference::forward(inputs, states);
    }
    let (heads, mixed) = (inputs.heads, inputs.mixed.contiguous()?);
    let (gates, tasks) = (inputs.gates()?, inputs.tasks());
    let mut all = states.map(small).transpose()?;
    let result = with_element!(mixed.dtype(), T => {
        let (values, len) = (Elements::<T>::new(&mixed)?, tokens * heads.output_width());
        let (values, mut o) = (&*values, Unwritten::<T>::new(len));
        {
            let shared = Shared::new(&mut o.slots()[..len]);
            let states = all.as_mut().map(|states| SharedStates::new(states));
            thread_pool::for_each(tasks.len(), |index| {
                let task = &tasks[index];
                let (rows, mut rest) = (task.gather(values, heads), vec![0f32; heads.value_width]);
                for value_head in task.value_heads(heads) {
                    let v = task.gather_values(values, heads, value_head);
                    let mut state = vec![0f32; heads.state()];
                    // SAFETY: a head of a document belongs to one task.
                    let own = states.as_ref().map(|states| unsafe { states.of(task.document * heads.values + value_head, heads.state()) });
                    if let Some(own) = &own {
                        state.copy_from_slice(own);
                    }
                    let mut results = vec![0f32; v.len()];
                    for token in 0..task.length {
                        let step = rows.step(token, &v, heads, gates.of(task.start + token, value_head));
                        advance(&mut state, &step, &mut rest);
                        read(&state, step.q, &mut results[token * heads.value_width..][..heads.value_width]);
                    }
                    // SAFETY: as above.
                    unsafe { shared.scatter(&results, task.rows(heads.output_width(), value_head * heads.value_width, heads.value_width), 1.0) };
                    if let Some(own) = own {
                        own.copy_from_slice(&state);
                    }
                }
            });
        }
        // SAFETY: the tasks cover every head of every token.
        unsafe { o.into_tensor(&[tokens, heads.output_width()]) }
    })?;
    if let (Some(states), Some(all)) = (states, all) {
        update(states, "delta rule", |values| {
            values.copy_from_slice(&all);
            Ok(())
        })?;
    }
    Ok(result)
}

/// Gradients of [`forward`] without states.
///
/// # Errors
/// Shapes that do not go together.
pub fn backward(inputs: &Inputs<'_>, d_o: &Tensor) -> Result<Gradients> {
    let (tokens, heads) = (inputs.check(None)?, inputs.heads);
    shape::expect(d_o, &[tokens, heads.output_width()], "delta rule: d_o")?;
    if !is_fused(inputs.mixed) {
        return reference::backward(inputs, d_o);
    }
    let (mixed, d_o) = (inputs.mixed.contiguous()?, d_o.contiguous()?);
    let (gates, tasks) = (inputs.gates()?, inputs.tasks());
    with_element!(mixed.dtype(), T => {
        let (values, d_o) = (Elements::<T>::new(&mixed)?, Elements::<T>::new(&d_o)?);
        let (values, d_o) = (&*values, &*d_o);
        let (wide, narrow) = (tokens * heads.input_width(), tokens * heads.values);
        let mut d_mixed = Unwritten::<T>::new(wide);
        let (mut d_a, mut d_b) = (Unwritten::<T>::new(narrow), Unwritten::<T>::new(narrow));
        {
            let shared = Shared::new(&mut d_mixed.slots()[..wide]);
            let (shared_a, shared_b) = (Shared::new(&mut d_a.slots()[..narrow]), Shared::new(&mut d_b.slots()[..narrow]));
            thread_pool::for_each(tasks.len(), |index| {
                let task = &tasks[index];
                let rows = task.gather(values, heads);
                let (mut d_q, mut d_k) = (vec![0f32; rows.q.len()], vec![0f32; rows.k.len()]);
                for value_head in task.value_heads(heads) {
                    let head = HeadBackward {
                        heads,
                        rows: &rows,
                        v: &task.gather_values(values, heads, value_head),
                        d_o: &task.gathered(d_o, heads.output_width(), value_head * heads.value_width, heads.value_width),
                        gates: &gates,
                        first: task.start,
                        value_head,
                    };
                    let found = head.run(&mut d_q, &mut d_k);
                    let column = 2 * heads.keys * heads.key_width + value_head * heads.value_width;
                    // SAFETY: a head of a document belongs to one task.
                    unsafe {
                        shared.scatter(&found.d_v, task.rows(heads.input_width(), column, heads.value_width), 1.0);
                        shared_a.scatter(&found.d_a, task.rows(heads.values, value_head, 1), 1.0);
                        shared_b.scatter(&found.d_b, task.rows(heads.values, value_head, 1), 1.0);
                    }
                }
                for ((d, unit, lengths), column) in [
                    (&mut d_q, &rows.q, &rows.q_factors),
                    (&mut d_k, &rows.k, &rows.k_factors),
                ].into_iter().zip([0, heads.keys * heads.key_width]) {
                    through_lengths(d, unit, lengths, heads.key_width);
                    let column = column + task.key_head * heads.key_width;
                    // SAFETY: as above.
                    unsafe { shared.scatter(d, task.rows(heads.input_width(), column, heads.key_width), 1.0) };
                }
            });
        }
        // SAFETY: the tasks cover every head of every token.
        unsafe {
            Ok(Gradients {
                mixed: d_mixed.into_tensor(&[tokens, heads.input_width()])?,
                a: d_a.into_tensor(&[tokens, heads.values])?,
                b: d_b.into_tensor(&[tokens, heads.values])?,
            })
        }
    })
}

impl Heads {
    /// Values of a token that the rule reads.
    pub fn input_width(&self) -> usize {
        2 * self.keys * self.key_width + self.output_width()
    }

    /// Values of a token that it gives.
    pub fn output_width(&self) -> usize {
        self.values * self.value_width
    }

    /// Values of a head's state.
    pub fn state(&self) -> usize {
        self.key_width * self.value_width
    }

    /// Value heads that read one key head.
    fn group(&self) -> usize {
        self.values / self.keys
    }
}

impl Inputs<'_> {
    fn check(&self, states: Option<&Tensor>) -> Result<usize> {
        let (tokens, heads) = (self.mixed.dim(0)?, self.heads);
        let documents = self.offsets.len().saturating_sub(1);
        let is_whole = self.offsets.first() == Some(&0) && self.offsets.last() == Some(&(tokens as u32));
        if heads.keys == 0 || !heads.values.is_multiple_of(heads.keys) || heads.state() == 0 {
            candle_core::bail!("delta rule: {heads:?}");
        }
        if !is_whole || self.offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            candle_core::bail!("delta rule: documents that do not make up {tokens} tokens");
        }
        shape::expect(self.mixed, &[tokens, heads.input_width()], "delta rule: mixed")?;
        shape::expect(self.a, &[tokens, heads.values], "delta rule: a")?;
        shape::expect(self.b, &[tokens, heads.values], "delta rule: b")?;
        shape::expect(self.rate, &[heads.values], "delta rule: rate")?;
        shape::expect(self.shift, &[heads.values], "delta rule: shift")?;
        if let Some(states) = states {
            let expected = [documents, heads.values, heads.key_width, heads.value_width];
            shape::expect(states, &expected, "delta rule: states")?;
        }
        Ok(tokens)
    }

    fn tasks(&self) -> Vec<Task> {
        let of_document = |(document, pair): (usize, &[u32])| {
            let (start, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
            let task = move |key_head| Task {
                document,
                start,
                length,
                key_head,
            };
            (0..self.heads.keys).map(task)
        };
        self.offsets.windows(2).enumerate().flat_map(of_document).collect()
    }

    fn gates(&self) -> Result<Gates> {
        Ok(Gates {
            a: small(self.a)?,
            b: small(self.b)?,
            rate: small(self.rate)?.into_iter().map(f32::exp).collect(),
            shift: small(self.shift)?,
        })
    }
}

/// Values that decide decay and beta of each head.
struct Gates {
    a: Vec<f32>,
    b: Vec<f32>,
    /// exp of the rate.
    rate: Vec<f32>,
    shift: Vec<f32>,
}

/// Decay and beta of one token and head.
#[derive(Clone, Copy)]
struct Gate {
    alpha: f32,
    beta: f32,
    /// d(log alpha) / da
    slope: f32,
}

impl Gates {
    fn of(&self, token: usize, head: usize) -> Gate {
        let (place, rate) = (token * self.shift.len() + head, self.rate[head]);
        let x = self.a[place] + self.shift[head];
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        Gate {
            alpha: (-rate * softplus).exp(),
            beta: logistic(self.b[place]),
            slope: -rate * logistic(x),
        }
    }
}

fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// A key head of a document.
#[derive(Clone, Copy, Debug)]
struct Task {
    document: usize,
    start: usize,
    length: usize,
    key_head: usize,
}

/// Queries and keys of a head of a document, of length 1, queries divided by sqrt(dk) too.
struct UnitRows {
    q: Vec<f32>,
    k: Vec<f32>,
    /// Factors that gave each row its length, and the part of them beside the length.
    q_factors: (Vec<f32>, f32),
    k_factors: (Vec<f32>, f32),
}

/// Step that one token does on a state.
#[derive(Clone, Copy)]
struct Step<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    gate: Gate,
}

impl Task {
    fn rows(&self, stride: usize, offset: usize, width: usize) -> Rows {
        Rows {
            token: self.start,
            stride,
            offset,
            width,
        }
    }

    fn gathered<T: Element>(&self, values: &[T], stride: usize, offset: usize, width: usize) -> Vec<f32> {
        let mut block = vec![0f32; self.length * width];
        if !block.is_empty() {
            gather(values, self.rows(stride, offset, width), 1.0, &mut block);
        }
        block
    }

    fn gather<T: Element>(&self, values: &[T], heads: Heads) -> UnitRows {
        let (stride, width) = (heads.input_width(), heads.key_width);
        let of = |column: usize| self.gathered(values, stride, column + self.key_head * width, width);
        let (mut q, mut k) = (of(0), of(heads.keys * width));
        let scale = (width as f32).sqrt().recip();
        UnitRows {
            q_factors: (to_unit(&mut q, width, scale), scale),
            k_factors: (to_unit(&mut k, width, 1.0), 1.0),
            q,
            k,
        }
    }

    fn gather_values<T: Element>(&self, values: &[T], heads: Heads, head: usize) -> Vec<f32> {
        let column = 2 * heads.keys * heads.key_width + head * heads.value_width;
        self.gathered(values, heads.input_width(), column, heads.value_width)
    }

    fn value_heads(&self, heads: Heads) -> std::ops::Range<usize> {
        self.key_head * heads.group()..(self.key_head + 1) * heads.group()
    }
}

impl UnitRows {
    fn step<'a>(&'a self, token: usize, v: &'a [f32], heads: Heads, gate: Gate) -> Step<'a> {
        let of = |rows: &'a [f32], width: usize| &rows[token * width..][..width];
        Step {
            q: of(&self.q, heads.key_width),
            k: of(&self.k, heads.key_width),
            v: of(v, heads.value_width),
            gate,
        }
    }
}

/// The backward pass of one value head of a document.
struct HeadBackward<'a> {
    heads: Heads,
    rows: &'a UnitRows,
    v: &'a [f32],
    d_o: &'a [f32],
    gates: &'a Gates,
    /// The document's first token in the stream.
    first: usize,
    value_head: usize,
}

/// Gradients of a head besides those of q and k.
struct HeadGradients {
    d_v: Vec<f32>,
    d_a: Vec<f32>,
    d_b: Vec<f32>,
}

impl HeadBackward<'_> {
    fn step(&self, token: usize) -> Step<'_> {
        let gate = self.gates.of(self.first + token, self.value_head);
        self.rows.step(token, self.v, self.heads, gate)
    }

    /// Adds to the gradients of the unit rows.
    fn run(&self, d_q: &mut [f32], d_k: &mut [f32]) -> HeadGradients {
        let (dk, dv, size) = (self.heads.key_width, self.heads.value_width, self.heads.state());
        let length = self.v.len() / dv;
        let segment = segment(length);
        let firsts = self.first_states(length, segment);
        let (mut states, mut rests) = (vec![0f32; (segment + 1) * size], vec![0f32; segment * dv]);
        let mut d_state = vec![0f32; size];
        let (mut d_write, mut d_rest) = (vec![0f32; dv], vec![0f32; dv]);
        let mut found = HeadGradients {
            d_v: vec![0f32; self.v.len()],
            d_a: vec![0f32; length],
            d_b: vec![0f32; length],
        };
        for (number, first) in firsts.chunks_exact(size).enumerate().rev() {
            let tokens = number * segment..((number + 1) * segment).min(length);
            states[..size].copy_from_slice(first);
            for (place, token) in tokens.clone().enumerate() {
                let (before, after) = states[place * size..(place + 2) * size].split_at_mut(size);
                after.copy_from_slice(before);
                advance(after, &self.step(token), &mut rests[place * dv..][..dv]);
            }
            for (place, token) in tokens.enumerate().rev() {
                let (before, after) = states[place * size..(place + 2) * size].split_at(size);
                let (step, rest) = (self.step(token), &rests[place * dv..][..dv]);
                let row = token * dk..(token + 1) * dk;
                let mut both = Both {
                    d_q: &mut d_q[row.clone()],
                    d_k: &mut d_k[row],
                };
                let values = token * dv..(token + 1) * dv;
                let given = (&self.d_o[values.clone()], rest);
                read_back(after, &step, given, &mut d_state, &mut both, &mut d_write);
                let Gate { alpha, beta, slope } = step.gate;
                found.d_b[token] = beta * (1.0 - beta) * sum2(&d_write, rest, |d: f32, rest: f32| d * rest);
                for ((d_rest, d_v), d_write) in d_rest.iter_mut().zip(&mut found.d_v[values]).zip(&d_write) {
                    *d_rest = beta * d_write;
                    *d_v = beta * d_write;
                }
                found.d_a[token] = slope * alpha * advance_back(before, &step, &d_rest, &mut d_state, &mut both);
            }
        }
        found
    }

    /// The states before the first token of each segment.
    fn first_states(&self, length: usize, segment: usize) -> Vec<f32> {
        let size = self.heads.state();
        let (mut state, mut rest) = (vec![0f32; size], vec![0f32; self.heads.value_width]);
        let mut firsts = Vec::with_capacity(length.div_ceil(segment) * size);
        for token in 0..length {
            if token.is_multiple_of(segment) {
                firsts.extend_from_slice(&state);
            }
            if token < (length - 1) / segment * segment {
                advance(&mut state, &self.step(token), &mut rest);
            }
        }
        firsts
    }
}

/// Tokens whose states exist at a time in the backward pass of a document.
fn segment(length: usize) -> usize {
    peft_tune_core::plan::delta_rule::segment(length)
}

/// Gradients of a token's query and key.
struct Both<'a> {
    d_q: &'a mut [f32],
    d_k: &'a mut [f32],
}

multiversion! {
    /// Brings rows of `width` to length 1 times `scale`; returns what each was multiplied with.
    fn to_unit(rows: &mut [f32], width: usize, scale: f32) -> Vec<f32> {
        let of_row = |row: &mut [f32]| {
            let factor = scale / (sum2(row, row, |a: f32, b: f32| a * b) + EPSILON).sqrt();
            for value in row.iter_mut() {
                *value *= factor;
            }
            factor
        };
        rows.chunks_exact_mut(width).map(of_row).collect()
    }
}

/// The gradient with respect to rows from that of their form of length 1: f (d - u <u, d> / s^2), f the factor of [`to_unit`], u what it
/// gave and s its scale.
fn through_lengths(d: &mut [f32], unit: &[f32], (factors, scale): &(Vec<f32>, f32), width: usize) {
    let rows = d.chunks_exact_mut(width).zip(unit.chunks_exact(width));
    for ((d, unit), factor) in rows.zip(factors) {
        let along = sum2(d, unit, |d: f32, unit: f32| d * unit) / (scale * scale);
        for (d, unit) in d.iter_mut().zip(unit) {
            *d = factor * (*d - along * unit);
        }
    }
}

multiversion! {
    /// S of the token from that of the one before; r into `rest`.
    fn advance(state: &mut [f32], step: &Step<'_>, rest: &mut [f32]) {
        let width = rest.len();
        rest.fill(0.0);
        for (row, k) in state.chunks_exact_mut(width).zip(step.k) {
            for (value, rest) in row.iter_mut().zip(rest.iter_mut()) {
                *value *= step.gate.alpha;
                *rest += k * *value;
            }
        }
        for (rest, v) in rest.iter_mut().zip(step.v) {
            *rest = v - *rest;
        }
        for (row, k) in state.chunks_exact_mut(width).zip(step.k) {
            let k = k * step.gate.beta;
            for (value, rest) in row.iter_mut().zip(rest.iter()) {
                *value += k * rest;
            }
        }
    }
}

multiversion! {
    /// o = S^T q; `o` is 0 before.
    fn read(state: &[f32], q: &[f32], o: &mut [f32]) {
        for (row, q) in state.chunks_exact(o.len()).zip(q) {
            for (o, value) in o.iter_mut().zip(row) {
                *o += q * value;
            }
        }
    }
}

multiversion! {
    /// Goes from dS behind the token to that with its own reading: d(beta r) into `d_write`, and adds dq and the first
    /// part of dk. `token` is do and r.
    fn read_back(
        state: &[f32],
        step: &Step<'_>,
        token: (&[f32], &[f32]),
        d_state: &mut [f32],
        both: &mut Both<'_>,
        d_write: &mut [f32],
    ) {
        let ((d_o, rest), width) = (token, d_write.len());
        d_write.fill(0.0);
        let rows = state.chunks_exact(width).zip(d_state.chunks_exact_mut(width));
        let factors = step.q.iter().zip(step.k);
        let gradients = both.d_q.iter_mut().zip(both.d_k.iter_mut());
        for (((row, d_row), (q, k)), (d_q, d_k)) in rows.zip(factors).zip(gradients) {
            *d_q += sum2(row, d_o, |value: f32, d_o: f32| value * d_o);
            for ((d_value, d_o), d_write) in d_row.iter_mut().zip(d_o).zip(d_write.iter_mut()) {
                *d_value += q * d_o;
                *d_write += k * *d_value;
            }
            *d_k += step.gate.beta * sum2(d_row, rest, |d: f32, rest: f32| d * rest);
        }
    }
}

multiversion! {
    /// Goes from dS to that before the token, with the second part of dk; returns <dP, S of the token before>. `d_rest`
    /// is the gradient of r.
    fn advance_back(before: &[f32], step: &Step<'_>, d_rest: &[f32], d_state: &mut [f32], both: &mut Both<'_>) -> f32 {
        let (width, alpha) = (d_rest.len(), step.gate.alpha);
        let rows = before.chunks_exact(width).zip(d_state.chunks_exact_mut(width));
        let mut along = 0f32;
        for (((row, d_row), k), d_k) in rows.zip(step.k).zip(both.d_k.iter_mut()) {
            for (d_value, d_rest) in d_row.iter_mut().zip(d_rest) {
                *d_value -= k * d_rest;
            }
            *d_k -= alpha * sum2(row, d_rest, |value: f32, d: f32| value * d);
            along += sum2(row, d_row, |value: f32, d: f32| value * d);
            for d_value in d_row.iter_mut() {
                *d_value *= alpha;
            }
        }
        along
    }
}

/// The states of all documents, whose parts go to different threads.
struct SharedStates(*mut f32);

// SAFETY: every part is reached from one thread.
unsafe impl Sync for SharedStates {}

impl SharedStates {
    fn new(states: &mut [f32]) -> Self {
        Self(states.as_mut_ptr())
    }

    /// # Safety
    /// The part lies within the states, and nothing else reaches it while it is borrowed.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the parts are disjoint")]
    unsafe fn of(&self, number: usize, size: usize) -> &mut [f32] {
        // SAFETY: the caller's promise is the same.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(number * size), size) }
    }
}
