//! Blocked products on AVX-512.

use super::instructions::Instructions;
use super::operand::{Left, Result, Source};
use super::thin_tile::{self, Block, Factors};
use super::tile::{self, Begin, LANES, Line, PanelProduct, Unit, VECTORS};
use super::unit_operand::Operand;
use super::{finish, pack};
use crate::ops::element::Element;
use core::arch::x86_64::*;
use peft_tune_core::plan::products::Tiling;
use peft_tune_core::plan::products::thin::ROWS;
use std::ops::Range;

/// AVX-512F, BW, DQ and VL; AVX-512 BF16 too where left operands are BF16.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512;

impl Instructions for Avx512 {
    const TILING: Tiling = Tiling::AVX512;

    fn unit<T: Operand>() -> Unit {
        T::UNIT
    }

    unsafe fn multiply(unit: Unit, size: (usize, usize), pieces: &[PanelProduct], begin: Begin, sums: *mut f32) {
        // SAFETY: the caller's promise is the same.
        unsafe { tile::multiply(unit, size, pieces, begin, sums) };
    }

    unsafe fn write<O: Element>(result: &Result<O>, sums: &[f32], row: usize, columns: Range<usize>) {
        // SAFETY: the caller's promise is the same.
        unsafe { finish::write(result, sums, row, columns) };
    }

    unsafe fn nr_panel<T: Element>(
        source: &Source<'_, T>,
        unit: Unit,
        column: usize,
        units: Range<usize>,
        nr_panel: &mut [Line],
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe { pack::nr_panel(source, unit, column, units, nr_panel) };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn mr_panel<T: Operand>(
        left: &Left<'_, T>,
        unit: Unit,
        rows: &Range<usize>,
        units: Range<usize>,
        mr_panel: &mut [u32],
    ) {
        pack::mr_panel(left, unit, rows, units, mr_panel);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add_thin<X: Element>(factors: &[Factors], block: Block<'_, X>, tile: &mut [f32; thin_tile::TILE]) {
        let masks = [0, LANES, 2 * LANES].map(|first| finish::mask(block.columns.saturating_sub(first)));
        let mut registers = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        for (index, register) in registers.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: a tile has so many vectors.
            *register = unsafe { _mm512_loadu_ps(tile.as_ptr().add(index * LANES)) };
        }
        for (token, factors) in factors.iter().enumerate() {
            let values = block.values[token * block.stride..].as_ptr();
            let mut row = [_mm512_setzero_ps(); VECTORS];
            for (vector, (value, mask)) in row.iter_mut().zip(masks).enumerate() {
                // SAFETY: the columns lie within the token's row; masked lanes are not read.
                *value = unsafe { finish::load(values.wrapping_add(vector * LANES), mask) };
            }
            for (registers, factor) in registers.iter_mut().zip(factors) {
                let factor = _mm512_set1_ps(*factor);
                for (register, value) in registers.iter_mut().zip(row) {
                    *register = _mm512_fmadd_ps(factor, value, *register);
                }
            }
        }
        for (index, register) in registers.as_flattened().iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(tile.as_mut_ptr().add(index * LANES), *register) };
        }
    }
}
