//! The form without a gradient of the head: the vocabulary passes by in groups, as keys do in attention. Of the logits only those of
//! a group exist, and each product reads the head once.
//!
//! For each row m is the largest logit so far, s = sum of exp(z - m), and a = sum of exp(z - m) (1 - (z / c)^2) weight_v over all v but
//! the target; a group with a larger logit scales s and a down. In the end loss = m + log(s) - z_target, and d_hidden = scale (a / s +
//! (exp(z_target - m) / s - 1) (1 - (z_target / c)^2) weight_target). The target is apart because its term is often a thousand times the
//! others, and a product of F32 on AMX is as exact as the largest value of a row allows.

use super::head::Head;
use super::settings::target_positions;
use super::softmax::{self, Row};
use super::{Output, Settings, Sums};
use crate::ops::element::Element;
use crate::ops::matmul::operand::Old;
use crate::ops::storage::Unwritten;
use crate::thread_pool;
use candle_core::{Device, Result, Tensor};
use peft_tune_core::plan::{STREAMED_ROWS, even_chunks, streamed_columns};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Target positions that are computed at once.
struct Block<'a, T> {
    head: &'a Head<'a>,
    /// (rows, width).
    inputs: &'a [T],
    targets: Vec<usize>,
    states: Vec<Row>,
    /// (rows, width): a of each row.
    sums: Vec<f32>,
}

/// Loss of `hidden` and, with a gradient scale, the gradient with respect to it.
pub(super) fn forward<T: Element>(head: &Head<'_>, hidden: &Tensor, values: &[T], targets: &[i64]) -> Result<Output> {
    let positions = target_positions(targets);
    let Settings {
        gradient_scale,
        chunk_tokens,
        ..
    } = *head.settings;
    let rows = even_chunks(positions.len(), STREAMED_ROWS);
    let columns = streamed_columns(rows, chunk_tokens, head.vocabulary);
    let mut logits = Unwritten::<f32>::new(rows * columns);
    let mut d_hidden = gradient_scale.map(|_| vec![T::narrow(0.0); values.len()]);
    let mut inputs = Vec::with_capacity(rows * head.width);
    let (mut loss, mut correct, mut each) = (0.0, 0, Vec::new());
    for positions in positions.chunks(rows) {
        head.gather(values, positions, &mut inputs);
        let mut block = Block {
            head,
            inputs: &inputs,
            targets: positions
                .iter()
                .map(|position| targets[*position as usize] as usize)
                .collect(),
            states: vec![Row::EMPTY; positions.len()],
            sums: vec![0.0; gradient_scale.map_or(0, |_| inputs.len())],
        };
        for first in (0..head.vocabulary).step_by(columns) {
            let group = first..(first + columns).min(head.vocabulary);
            block.pass(group, logits.slots());
        }
        for state in &block.states {
            loss += state.loss();
            correct += u64::from(state.is_correct());
        }
        if gradient_scale.is_none() {
            each.extend(block.states.iter().map(Row::loss));
        }
        if let (Some(d_hidden), Some(scale)) = (&mut d_hidden, gradient_scale) {
            block.end(scale);
            for (sums, position) in block.sums.chunks_exact(head.width.max(1)).zip(positions) {
                for (d_hidden, sum) in d_hidden[head.place(*position)].iter_mut().zip(sums) {
                    *d_hidden = T::narrow(*sum);
                }
            }
        }
    }
    Ok(Output {
        sums: Sums::Known { loss, correct, each },
        target_tokens: positions.len() as u64,
        d_hidden: d_hidden
            .map(|values| Tensor::from_vec(values, hidden.shape(), &Device::Cpu))
            .transpose()?,
    })
}

impl<T: Element> Block<'_, T> {
    /// Takes a group of the vocabulary into the states and sums.
    fn pass(&mut self, group: Range<usize>, logits: &mut [MaybeUninit<f32>]) {
        let logits = self.head.logits(self.inputs, group.clone(), logits);
        let wants_gradient = !self.sums.is_empty();
        let (cap, width) = (self.head.cap(), self.head.width);
        let (targets, pairs) = (&self.targets, self.head.pairs);
        thread_pool::for_chunks2((logits, group.len()), (&mut self.states, 1), |row, logits, states| {
            let target = targets[row].checked_sub(group.start);
            let target = target.filter(|target| *target < logits.len());
            for state in states {
                softmax::pass(logits, target, cap, state);
            }
            if wants_gradient && pairs {
                softmax::narrow_in_place(logits);
            }
        });
        if !wants_gradient {
            return;
        }
        if self.states.iter().any(|state| state.factor < 1.0) {
            thread_pool::for_chunks2((&mut self.sums, width), (&mut self.states, 1), |_, sums, states| {
                for state in states {
                    sums.iter_mut().for_each(|sum| *sum *= state.factor);
                }
            });
        }
        self.head.d_inputs(logits, group, &mut self.sums, Old::Itself(1.0));
    }

    /// Makes the gradient of the sums.
    fn end(&mut self, scale: f32) {
        let (head, targets, cap) = (self.head, &self.targets, self.head.cap());
        thread_pool::for_chunks2(
            (&mut self.sums, head.width),
            (&mut self.states, 1),
            |row, sums, states| {
                for state in states {
                    head.add_weight(sums, state.factors(cap).map(|factor| scale * factor), targets[row]);
                }
            },
        );
    }
}
