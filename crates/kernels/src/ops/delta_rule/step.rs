//! Steps of single tokens on a head's state, forward and backward.

use super::gates::Gate;
use crate::ops::simd::{multiversion, sum2};

/// Step that one token does on a state.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub gate: Gate,
}

/// Gradients of a token's query and key.
pub(super) struct Both<'a> {
    pub d_q: &'a mut [f32],
    pub d_k: &'a mut [f32],
}

multiversion! {
    /// S of the token from that of the one before; r into `rest`.
    pub(super) fn advance(state: &mut [f32], step: &Step<'_>, rest: &mut [f32]) {
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
    pub(super) fn read(state: &[f32], q: &[f32], o: &mut [f32]) {
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
    pub(super) fn read_back(
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
    pub(super) fn advance_back(before: &[f32], step: &Step<'_>, d_rest: &[f32], d_state: &mut [f32], both: &mut Both<'_>) -> f32 {
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
