//! The vector instructions that blocked products run on.

use super::operand::{Left, Result, Source};
use super::thin_tile::{self, Block, Factors};
use super::tile::{Begin, Line, PanelProduct, Unit};
use super::unit_operand::Operand;
use crate::ops::element::Element;
use peft_tune_core::plan::products::Tiling;
use std::ops::Range;

/// Instructions that the innermost loops of blocked products are made of.
pub(super) trait Instructions {
    /// How the products are cut.
    const TILING: Tiling;

    /// Kind of the units of left operands of elements `T`.
    fn unit<T: Operand>() -> Unit;

    /// Sums up the `pieces`, so many rows of each left operand times its packed NR micro-panel of so many vectors, in `sums`, which is
    /// row-major.
    ///
    /// # Safety
    /// The processor has the instructions, and those of `unit`; the pieces and `sums` are valid for the shapes.
    unsafe fn multiply(unit: Unit, size: (usize, usize), pieces: &[PanelProduct], begin: Begin, sums: *mut f32);

    /// Writes the sums of a tile, which are row-major in whole vectors, to the rows from `row` on and to `columns`.
    ///
    /// # Safety
    /// `result` is valid there, and no one else writes there; the processor has the instructions.
    unsafe fn write<O: Element>(result: &Result<O>, sums: &[f32], row: usize, columns: Range<usize>);

    /// Packs the NR micro-panel of `source` that starts at `column`, for the units `units`.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn nr_panel<T: Element>(
        source: &Source<'_, T>,
        unit: Unit,
        column: usize,
        units: Range<usize>,
        nr_panel: &mut [Line],
    );

    /// Packs rows of a transposed left operand: for each unit, that unit of each row.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn mr_panel<T: Operand>(
        left: &Left<'_, T>,
        unit: Unit,
        rows: &Range<usize>,
        units: Range<usize>,
        mr_panel: &mut [u32],
    );

    /// Adds each token's factors times its columns of `block` to a tile, row-major.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn add_thin<X: Element>(factors: &[Factors], block: Block<'_, X>, tile: &mut [f32; thin_tile::TILE]);
}
