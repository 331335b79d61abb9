//! The head with its products, which both forms of the op take: rows times the transpose of some of its weight, and the gradient of
//! these rows.

use super::Settings;
use crate::ops::element::Element;
use crate::ops::matmul::engine;
use crate::ops::matmul::operand::{Old, Product, Result as Target, Side, Values};
use crate::ops::matmul::order::Order;
use candle_core::DType;
use half::bf16;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Inputs that every chunk reads.
pub(super) struct Head<'a> {
    /// (V, H).
    pub weight: Values<'a>,
    pub vocabulary: usize,
    pub width: usize,
    pub settings: &'a Settings,
    /// Whether gradients of logits are multiplied as BF16.
    pub pairs: bool,
}

impl Head<'_> {
    /// Bound of the logits; infinite for none.
    pub(super) fn cap(&self) -> f32 {
        self.settings.soft_cap.map_or(f32::INFINITY, |cap| cap as f32)
    }

    /// Range of the row of a position.
    pub(super) fn place(&self, position: u32) -> Range<usize> {
        let position = position as usize;
        position * self.width..(position + 1) * self.width
    }

    /// Copies the rows of `positions` to `inputs`, which have nothing else then.
    pub(super) fn gather<T: Element>(&self, values: &[T], positions: &[u32], inputs: &mut Vec<T>) {
        inputs.clear();
        for position in positions {
            inputs.extend_from_slice(&values[self.place(*position)]);
        }
    }

    /// Rows of the weight.
    fn rows(&self, rows: Range<usize>) -> Values<'_> {
        let place = rows.start * self.width..rows.end * self.width;
        match self.weight {
            Values::F32(weight) => Values::F32(&weight[place]),
            Values::Bf16(weight) => Values::Bf16(&weight[place]),
            Values::F16(weight) => Values::F16(&weight[place]),
        }
    }

    /// inputs (n, H) times the transpose of the rows `group` of the weight, into the first of the places.
    pub(super) fn logits<'a, T: Element>(
        &self,
        inputs: &[T],
        group: Range<usize>,
        logits: &'a mut [MaybeUninit<f32>],
    ) -> &'a mut [f32] {
        let size = (inputs.len() / self.width.max(1), group.len());
        let logits = &mut logits[..size.0 * size.1];
        let product = Product {
            left: element_values(inputs),
            side: Side::Straight,
            stride: self.width,
            right: self
                .rows(group)
                .right(Order::Transposed, (size.1, self.width), self.width, 1.0),
        };
        // SAFETY: the logits have a row for each input.
        unsafe {
            engine::multiply(
                &[product],
                size,
                Target::store(logits.as_mut_ptr().cast::<f32>(), size.1),
            )
        };
        // SAFETY: the product has written all of them.
        unsafe { logits.assume_init_mut() }
    }

    /// The gradient of rows of `columns` logits as a left operand, and the values from one row to the next.
    pub(super) fn d_logits<'a>(&self, d_logits: &'a [f32], columns: usize) -> (Values<'a>, usize) {
        if !self.pairs {
            return (Values::F32(d_logits), columns);
        }
        // SAFETY: two BF16 values take the place of one F32 value, and any bits are valid for them.
        let narrow = unsafe { std::slice::from_raw_parts(d_logits.as_ptr().cast::<bf16>(), 2 * d_logits.len()) };
        (Values::Bf16(narrow), 2 * columns)
    }

    /// row = factors[0] row + factors[1] times the row `token` of the weight.
    pub(super) fn add_weight<T: Element>(&self, row: &mut [T], factors: [f32; 2], token: usize) {
        fn add<T: Element, W: Element>(row: &mut [T], factors: [f32; 2], weight: &[W]) {
            for (value, weight) in row.iter_mut().zip(weight) {
                *value = T::narrow(factors[0] * value.widen() + factors[1] * weight.widen());
            }
        }
        match self.rows(token..token + 1) {
            Values::F32(weight) => add(row, factors, weight),
            Values::Bf16(weight) => add(row, factors, weight),
            Values::F16(weight) => add(row, factors, weight),
        }
    }

    /// d_logits (n, group) times the rows `group` of the weight, for the first rows of `d_inputs`.
    pub(super) fn d_inputs<O: Element>(&self, d_logits: &[f32], group: Range<usize>, d_inputs: &mut [O], old: Old<O>) {
        let (left, stride) = self.d_logits(d_logits, group.len());
        let size = (d_logits.len() / group.len().max(1), self.width);
        let product = Product {
            left,
            side: Side::Straight,
            stride,
            right: self
                .rows(group.clone())
                .right(Order::Straight, (self.width, group.len()), self.width, 1.0),
        };
        let target = Target {
            start: d_inputs[..size.0 * size.1].as_mut_ptr(),
            stride: self.width,
            old,
        };
        // SAFETY: there is a row of d_inputs for each row of logits.
        unsafe { engine::multiply(&[product], size, target) };
    }
}

/// A slice of elements as the values of an operand.
pub(super) fn element_values<T: Element>(values: &[T]) -> Values<'_> {
    let (start, len) = (values.as_ptr(), values.len());
    // SAFETY: each dtype stands for exactly one element type.
    unsafe {
        match T::DTYPE {
            DType::BF16 => Values::Bf16(std::slice::from_raw_parts(start.cast(), len)),
            DType::F16 => Values::F16(std::slice::from_raw_parts(start.cast(), len)),
            _ => Values::F32(std::slice::from_raw_parts(start.cast(), len)),
        }
    }
}
