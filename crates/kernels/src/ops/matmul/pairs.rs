//! Small products of pairs on one thread, with the tiles of the blocked ones: the right operand is packed as a whole, the
//! left one as the rows of a tile; both are rounded to BF16 on the way.

use super::finish::{self, rounded_to_bf16};
use super::operand;
use super::pack;
use super::tile::{self, Begin, LANES, Line, MrPanel, PanelProduct, TILE, Unit};
use super::view::{Old, View};
use crate::ops::scratch::grow;
use core::arch::x86_64::*;
use peft_tune_core::plan::products::{NR, Tiling};
use std::cell::RefCell;
use std::ops::Range;

/// Memory that a thread keeps from one product to the next.
#[derive(Default)]
struct Scratch {
    nr_panels: Vec<Line>,
    mr_panel: Vec<u32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// The sums of one tile.
#[repr(C, align(64))]
struct Sums([f32; TILE]);

/// left times right, both rounded to BF16, into `result` (row-major).
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and BF16; the views lie within their values, and the result has room for them.
pub(super) unsafe fn multiply(left: View<'_>, right: View<'_>, result: &mut [f32], old: Old) {
    let units = left.columns.div_ceil(Unit::Pair.values());
    let target = old.target(result, right.columns);
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: the caller's promise is the same.
        unsafe {
            pack_right(&right, units, &mut scratch.nr_panels);
            let vectors = pack::vectors(right.columns, 0);
            let mut row = 0;
            while row < left.rows {
                let rows = row..row + Tiling::AVX512.tile_height(left.rows - row, vectors);
                row = rows.end;
                let mr_panel = mr_panel(&left, units, rows.clone(), &mut scratch.mr_panel);
                tile_row(units, mr_panel, rows, &scratch.nr_panels, &target, right.columns);
            }
        }
    });
}

/// Packs all NR micro-panels of the right operand, one after the other.
unsafe fn pack_right(right: &View<'_>, units: usize, nr_panels: &mut Vec<Line>) {
    let source = right.source();
    let lines = right.columns.div_ceil(LANES) * units;
    grow(nr_panels, lines, Line::ZERO);
    let mut start = 0;
    for column in (0..right.columns).step_by(NR) {
        let lines = pack::vectors(right.columns, column) * units;
        // SAFETY: the caller's promise is the same.
        unsafe {
            pack::nr_panel(
                &source,
                Unit::Pair,
                column,
                0..units,
                &mut nr_panels[start..start + lines],
            )
        };
        start += lines;
    }
}

/// Multiplies one height of tiles with all NR micro-panels.
unsafe fn tile_row(
    units: usize,
    left: MrPanel,
    rows: Range<usize>,
    nr_panels: &[Line],
    target: &operand::Result<f32>,
    columns: usize,
) {
    let (mut sums, mut right) = (Sums([0.0; TILE]), nr_panels.as_ptr());
    for column in (0..columns).step_by(NR) {
        let vectors = pack::vectors(columns, column);
        let piece = PanelProduct { units, left, right };
        let sums = &mut sums.0[..rows.len() * vectors * LANES];
        // SAFETY: the NR micro-panels were packed for these units, and the MR micro-panel has them; this thread owns the result.
        unsafe {
            tile::multiply(
                Unit::Pair,
                (rows.len(), vectors),
                &[piece],
                Begin::Zero,
                sums.as_mut_ptr(),
            );
            finish::write(target, sums, rows.start, column..(column + NR).min(columns));
            right = right.add(units * vectors);
        }
    }
}

/// Packs the units of the rows `rows` of the left operand.
unsafe fn mr_panel(left: &View<'_>, units: usize, rows: Range<usize>, packed: &mut Vec<u32>) -> MrPanel {
    // A line more, since whole lines are written.
    let most = units.next_multiple_of(LANES) * rows.len() + LANES;
    grow(packed, most, 0);
    // SAFETY: the caller's promise is the same.
    unsafe {
        if left.column_stride == 1 {
            pack_straight(left, units, rows, packed)
        } else {
            pack_turned(left, units, rows, packed)
        }
    }
}

/// Rounds rows that lie along the summed dimension to pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn pack_straight(left: &View<'_>, units: usize, rows: Range<usize>, packed: &mut [u32]) -> MrPanel {
    let stride = units.next_multiple_of(LANES);
    for (row, place) in rows.zip(packed.chunks_exact_mut(stride)) {
        let values = &left.values[row * left.row_stride..][..left.columns];
        for (values, place) in values.chunks(2 * LANES).zip(place.as_chunks_mut::<LANES>().0) {
            let (low, high) = values.split_at(values.len().min(LANES));
            // SAFETY: the masks keep to the slices; a place is one register.
            unsafe {
                let low = _mm512_maskz_loadu_ps(finish::mask(low.len()), low.as_ptr());
                let high = _mm512_maskz_loadu_ps(finish::mask(high.len()), high.as_ptr());
                let pairs = _mm512_cvtne2ps_pbh(high, low);
                _mm512_storeu_si512(
                    place.as_mut_ptr().cast(),
                    core::mem::transmute::<__m512bh, __m512i>(pairs),
                );
            }
        }
    }
    MrPanel {
        start: packed.as_ptr(),
        row: stride,
        unit: 1,
    }
}

/// Rounds rows that lie across the summed dimension to pairs: for each unit, that unit of each row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn pack_turned(left: &View<'_>, units: usize, rows: Range<usize>, packed: &mut [u32]) -> MrPanel {
    let mask = finish::mask(rows.len());
    for unit in 0..units {
        let line = |index: usize| {
            let mask = if index < left.columns { mask } else { 0 };
            let start = (index * left.column_stride + rows.start).min(left.values.len() - 1);
            // SAFETY: the mask keeps to the rows of the tile.
            rounded_to_bf16(unsafe { _mm512_maskz_loadu_ps(mask, left.values[start..].as_ptr()) })
        };
        let (low, high) = (line(2 * unit), line(2 * unit + 1));
        let pairs = pack::combine(low, high);
        let place = &mut packed[unit * rows.len()..][..LANES];
        // SAFETY: a place has sixteen units; those beyond the rows are overwritten by the next unit.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), pairs) };
    }
    MrPanel {
        start: packed.as_ptr(),
        row: 1,
        unit: rows.len(),
    }
}
