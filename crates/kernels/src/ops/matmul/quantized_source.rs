//! The codes of a quantized weight as the right operand of an engine.

use std::ops::Range;

use super::order::Order;
use super::quantized_matrix::{QuantizedMatrix, rounds_left};

/// A quantized right operand as the engines take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedSource<'a> {
    pub values: &'a dyn QuantizedMatrix,
    pub order: Order,
    /// Columns of the result.
    pub columns: usize,
    /// Length of the summed dimension.
    pub depth: usize,
    /// Factor on every value.
    pub scale: f32,
}

/// Why a block can always be filled.
pub(super) const CHECKED: &str = "the product's shapes and the codes' device were checked before it began";

impl QuantizedSource<'_> {
    /// Whether the rows of the left operand are taken in 8 bits.
    pub(super) fn rounds_left(&self) -> bool {
        rounds_left(self.values, self.order)
    }

    /// The block of the matrix for some columns of the result and some of the summed dimension: (rows, columns).
    pub(super) fn block(&self, columns: Range<usize>, depth: Range<usize>) -> (Range<usize>, Range<usize>) {
        match self.order {
            Order::Transposed => (columns, depth),
            Order::Straight => (depth, columns),
        }
    }

    /// Widens the columns `block` of the result, over the whole summed dimension: (column stride, depth stride).
    pub(crate) fn widen(&self, block: Range<usize>, widened: &mut Vec<f32>) -> (usize, usize) {
        let width = block.len();
        widened.resize(width * self.depth, 0.0);
        let (rows, columns) = self.block(block, 0..self.depth);
        self.values.fill_f32(rows, columns, widened).expect(CHECKED);
        match self.order {
            Order::Transposed => (self.depth, 1),
            Order::Straight => (1, width),
        }
    }
}
