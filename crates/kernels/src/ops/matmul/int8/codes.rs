//! Blocks of the right operand as signed codes with factors: those of the weight, or quantized anew from its values.

use super::left::ROUNDER;
use crate::ops::matmul::order::Order;
use crate::ops::matmul::quantized_source::{CHECKED, QuantizedSource};
use crate::ops::simd::multiversion;
use crate::quant::Int8Blocks;
use peft_tune_core::plan::BLOCK;
use std::ops::Range;

/// Columns of the result that are coded at once.
pub(super) const MOST_COLUMNS: usize = 48;

/// One block of 64 of the summed dimension for some columns of the result: a row of codes and a factor for each column.
pub(super) struct Block {
    pub codes: [[i8; BLOCK]; MOST_COLUMNS],
    pub factors: [f32; MOST_COLUMNS],
}

impl Block {
    /// No codes.
    pub(super) const ZERO: Self = Self {
        codes: [[0; BLOCK]; MOST_COLUMNS],
        factors: [0.0; MOST_COLUMNS],
    };

    /// Fills the rows of `columns`, of which there are 48 at most, for block `block` of the summed dimension. What is beyond its end is zero.
    pub(super) fn fill(&mut self, source: &QuantizedSource<'_>, columns: Range<usize>, block: usize) {
        let depth = block * BLOCK..((block + 1) * BLOCK).min(source.depth);
        if source.order == Order::Transposed && self.copy(source, columns.clone(), depth.clone()) {
            return;
        }
        let (width, length) = (columns.len(), depth.len());
        let mut values = [0f32; BLOCK * MOST_COLUMNS];
        let values = &mut values[..width * length];
        let (rows, part) = source.block(columns, depth);
        source.values.fill_f32(rows, part, values).expect(CHECKED);
        let (column_stride, depth_stride) = match source.order {
            Order::Transposed => (length, 1),
            Order::Straight => (1, width),
        };
        for column in 0..width {
            let mut of_column = [0f32; BLOCK];
            for (index, value) in of_column.iter_mut().enumerate().take(length) {
                *value = values[column * column_stride + index * depth_stride];
            }
            self.factors[column] = round_block(&of_column, &mut self.codes[column]) * source.scale;
        }
    }

    /// Takes the weight's own codes where they lie in such blocks.
    fn copy(&mut self, source: &QuantizedSource<'_>, columns: Range<usize>, depth: Range<usize>) -> bool {
        let (width, length) = (columns.len(), depth.len());
        let codes = &mut self.codes.as_flattened_mut()[..width * length];
        let into = Int8Blocks {
            codes,
            factors: &mut self.factors[..width],
        };
        if !source.values.fill_int8(columns, depth, into).expect(CHECKED) {
            return false;
        }
        if length < BLOCK {
            // From the last row on, each goes to its own place.
            let codes = self.codes.as_flattened_mut();
            for column in (0..width).rev() {
                codes.copy_within(column * length..(column + 1) * length, column * BLOCK);
                codes[column * BLOCK + length..(column + 1) * BLOCK].fill(0);
            }
        }
        self.factors[..width]
            .iter_mut()
            .for_each(|factor| *factor *= source.scale);
        true
    }
}

multiversion! {
    /// Rounds 64 values to 127ths of their largest absolute value, and returns one of these.
    fn round_block(values: &[f32; 64], codes: &mut [i8; 64]) -> f32 {
        let mut largest = [0f32; 16];
        for chunk in values.as_chunks::<16>().0 {
            for lane in 0..16 {
                let value = chunk[lane].abs();
                largest[lane] = if value > largest[lane] { value } else { largest[lane] };
            }
        }
        let mut most = 0f32;
        for lane in largest {
            most = if lane > most { lane } else { most };
        }
        let factor = if most > 0.0 { 127.0 / most } else { 0.0 };
        for (code, value) in codes.iter_mut().zip(values) {
            *code = (value * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()) as i8;
        }
        most / 127.0
    }
}
