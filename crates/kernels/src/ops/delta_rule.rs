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

mod gates;
mod head_backward;
mod inputs;
pub mod reference;
mod shared_states;
mod step;
mod task;
#[cfg(test)]
mod tests;
mod unit_rows;

pub use inputs::{Gradients, Heads, Inputs};

use super::attention::Shared;
use super::element::with_element;
use super::shape;
use super::storage::{Elements, Unwritten, is_fused, small, update};
use crate::thread_pool;
use candle_core::{Result, Tensor};
use gates::Gates;
use head_backward::HeadBackward;
use shared_states::SharedStates;
use step::{advance, read};
use task::Task;
use unit_rows::through_lengths;

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
    let (gates, tasks) = (Gates::new(inputs)?, Task::all(inputs));
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
    let (gates, tasks) = (Gates::new(inputs)?, Task::all(inputs));
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
