//! The backward pass of one value head of a document.

use super::gates::{Gate, Gates};
use super::inputs::Heads;
use super::step::{Both, Step, advance, advance_back, read_back};
use super::unit_rows::UnitRows;
use crate::ops::simd::sum2;

/// The backward pass of one value head of a document.
pub(super) struct HeadBackward<'a> {
    pub heads: Heads,
    pub rows: &'a UnitRows,
    pub v: &'a [f32],
    pub d_o: &'a [f32],
    pub gates: &'a Gates,
    /// The document's first token in the stream.
    pub first: usize,
    pub value_head: usize,
}

/// Gradients of a head besides those of q and k.
pub(super) struct HeadGradients {
    pub d_v: Vec<f32>,
    pub d_a: Vec<f32>,
    pub d_b: Vec<f32>,
}

impl HeadBackward<'_> {
    fn step(&self, token: usize) -> Step<'_> {
        let gate = self.gates.of(self.first + token, self.value_head);
        self.rows.step(token, self.v, self.heads, gate)
    }

    /// Gradients of the head; adds to those of the unit rows.
    pub(super) fn run(&self, d_q: &mut [f32], d_k: &mut [f32]) -> HeadGradients {
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
