//! The left operand in bytes: rows rounded to 127ths of their largest absolute value.

use crate::ops::element::Element;
use crate::ops::matmul::operand::{Product, Values};
use crate::ops::scratch::resize;
use crate::ops::simd::multiversion;
use crate::thread_pool;
use peft_tune_core::plan::BLOCK;
use peft_tune_core::plan::products::int8::AMX_ROWS;

/// Number that is added to a code where the left operand is not signed.
pub(super) const BIAS: i32 = 128;
/// Rows whose largest value is below are taken as zero: its reciprocal would not be finite.
const SMALLEST: f32 = 1e-30;
/// 1.5 * 2^23: added to it, a small number is rounded to a whole one in the low bits, ties to even.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// How a form takes the codes of left operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// code + 128.
    Biased,
    /// The codes themselves, in whole tiles of [`AMX_ROWS`] rows; behind the last row there may be anything.
    Signed,
}

impl Layout {
    fn bias(self) -> i32 {
        match self {
            Self::Biased => BIAS,
            Self::Signed => 0,
        }
    }

    fn rows(self, rows: usize) -> usize {
        match self {
            Self::Biased => rows,
            Self::Signed => rows.next_multiple_of(AMX_ROWS),
        }
    }
}

/// The codes of the left operands of one sum of products, one behind the other.
#[derive(Debug, Default)]
pub(super) struct LeftMemory {
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// The codes of one left operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftCodes<'a> {
    /// Bytes as the [`Layout`] says, in rows of [`LeftCodes::stride`]; behind a row's end there may be anything.
    pub codes: &'a [u8],
    /// Factors of the codes of each row; not a number where a value of the row is not finite.
    pub scales: &'a [f32],
    /// Bytes from one row to the next, a multiple of 64.
    pub stride: usize,
}

impl LeftMemory {
    /// Rounds the left operands of `products`, of so many rows and of these depths, on all threads.
    pub(super) fn fill(&mut self, products: &[Product<'_>], rows: usize, layout: Layout) -> Vec<LeftCodes<'_>> {
        let padded = layout.rows(rows);
        let strides: Vec<usize> = products
            .iter()
            .map(|product| product.right.depth().next_multiple_of(BLOCK).max(BLOCK))
            .collect();
        resize(&mut self.codes, padded * strides.iter().sum::<usize>(), 0);
        resize(&mut self.scales, padded * products.len(), 0.0);
        let (mut codes, mut scales) = (&mut self.codes[..], &mut self.scales[..]);
        let mut all = Vec::with_capacity(products.len());
        for (product, stride) in products.iter().zip(strides) {
            let (of_codes, of_scales);
            (of_codes, codes) = codes.split_at_mut(padded * stride);
            (of_scales, scales) = scales.split_at_mut(padded);
            let (apart, depth) = (product.stride, product.right.depth());
            let into = (&mut of_codes[..rows * stride], stride);
            let of_rows = &mut of_scales[..rows];
            let bias = layout.bias();
            match product.left {
                Values::F32(values) => round((values, apart, depth), into, of_rows, bias),
                Values::Bf16(values) => round((values, apart, depth), into, of_rows, bias),
                Values::F16(values) => round((values, apart, depth), into, of_rows, bias),
            }
            all.push(LeftCodes {
                codes: of_codes,
                scales: of_scales,
                stride,
            });
        }
        all
    }
}

/// Rounds rows of `depth` values that are `apart` values apart.
fn round<T: Element>(
    (values, apart, depth): (&[T], usize, usize),
    (codes, stride): (&mut [u8], usize),
    scales: &mut [f32],
    bias: i32,
) {
    let rows = (CHUNK / stride).max(1);
    thread_pool::for_chunks2((codes, rows * stride), (scales, rows), |chunk, codes, scales| {
        for (index, (codes, scale)) in codes.chunks_exact_mut(stride).zip(scales).enumerate() {
            let row = (chunk * rows + index) * apart;
            *scale = round_row(&values[row..row + depth], codes, bias);
        }
    });
}

/// Values that one thread rounds at a time.
const CHUNK: usize = 16 * 1024;

multiversion! {
    /// Writes the codes of a row, with `bias` added, and returns its scale.
    fn round_row<T: Element>(values: &[T], codes: &mut [u8], bias: i32) -> f32 {
        let mut largest = [0f32; 16];
        let mut spoiled = [0f32; 16];
        let (chunks, rest) = values.as_chunks::<16>();
        for chunk in chunks {
            for lane in 0..16 {
                let value = chunk[lane].widen().abs();
                largest[lane] = if value > largest[lane] { value } else { largest[lane] };
                // Zero, or not a number where the value is not finite.
                spoiled[lane] += value * 0.0;
            }
        }
        for (lane, value) in rest.iter().enumerate() {
            let value = value.widen().abs();
            largest[lane] = if value > largest[lane] { value } else { largest[lane] };
            spoiled[lane] += value * 0.0;
        }
        let (mut most, mut poison) = (0f32, 0f32);
        for lane in 0..16 {
            most = if largest[lane] > most { largest[lane] } else { most };
            poison += spoiled[lane];
        }
        let factor = if most > SMALLEST && most < f32::INFINITY { 127.0 / most } else { 0.0 };
        for (code, value) in codes.iter_mut().zip(values) {
            let rounded = (value.widen() * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits());
            *code = rounded.wrapping_add(bias as u32) as u8;
        }
        let scale = if factor > 0.0 { most / 127.0 } else { 0.0 };
        scale + poison
    }
}
