//! The innermost loops of the blocked products: a tile of the result stays in registers while one row of units after the
//! other streams by.
//!
//! A *unit* is 32 bits along the summed dimension: one F32 value, or two neighbouring BF16 values that
//! `_mm512_dpbf16_ps` multiplies and adds at once. Both kinds therefore share all of the packing and blocking; only the
//! instruction differs. A tile of 8 x 48 results takes 24 of the 32 registers, which hides the latency of the
//! multiply-add and loads three vectors and eight broadcasts for 24 instructions.

use core::arch::x86_64::*;
pub(super) use peft_tune_core::plan::products::{LANES, VECTORS};
use peft_tune_core::plan::products::{NR, Tiling};

/// One AVX-512 register of units, aligned as the loads want it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; 16]);

impl Line {
    pub(super) const ZERO: Self = Self([0; 16]);
}

/// Elements of the largest tile.
pub(super) const TILE: usize = Tiling::AVX512.rows * NR;

/// Content of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// One F32 value.
    Single,
    /// Two BF16 values; subnormal values count as zero, as the instruction defines.
    Pair,
}

impl Unit {
    /// Values of a unit.
    pub(super) const fn values(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Pair => 2,
        }
    }
}

/// Place of the units of the left operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct MrPanel {
    pub start: *const u32,
    /// Units from one row of the tile to the next.
    pub row: usize,
    /// Units from one unit of a row to the next.
    pub unit: usize,
}

impl MrPanel {
    /// Place of no units.
    pub(super) const NONE: Self = Self {
        start: std::ptr::null(),
        row: 0,
        unit: 0,
    };
}

/// Product among those that a tile sums up.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelProduct {
    pub units: usize,
    pub left: MrPanel,
    /// The packed NR micro-panel.
    pub right: *const Line,
}

impl PanelProduct {
    /// Product of no units.
    pub(super) const NONE: Self = Self {
        units: 0,
        left: MrPanel::NONE,
        right: std::ptr::null(),
    };
}

/// Values that a tile's sums begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    Zero,
    /// Values that the sums have already.
    Sums,
}

macro_rules! tile {
    ($name:ident, $features:literal, |$sum:ident, $left:ident, $right:ident| $multiply_add:expr) => {
        /// sums (M, V * 16) += left (M, units) times right (units, V * 16), for all pieces.
        ///
        /// # Safety
        /// The processor has the features; every pointer is valid for what the shapes say.
        #[target_feature(enable = $features)]
        unsafe fn $name<const M: usize, const V: usize>(pieces: &[PanelProduct], begin: Begin, sums: *mut f32) {
            // SAFETY: the caller's promise covers every address below.
            unsafe {
                let mut tile = [[_mm512_setzero_ps(); V]; M];
                if begin == Begin::Sums {
                    for (m, row) in tile.iter_mut().enumerate() {
                        for (v, sum) in row.iter_mut().enumerate() {
                            *sum = _mm512_loadu_ps(sums.add((m * V + v) * LANES));
                        }
                    }
                }
                for &PanelProduct { units, left, right } in pieces {
                    for unit in 0..units {
                        let mut vectors = [_mm512_setzero_si512(); V];
                        for (v, vector) in vectors.iter_mut().enumerate() {
                            *vector = _mm512_load_si512(right.add(unit * V + v).cast());
                        }
                        let column = left.start.add(unit * left.unit);
                        for (m, row) in tile.iter_mut().enumerate() {
                            let $left = _mm512_set1_epi32(column.add(m * left.row).read_unaligned() as i32);
                            for ($sum, $right) in row.iter_mut().zip(vectors) {
                                *$sum = $multiply_add;
                            }
                        }
                    }
                }
                for (m, row) in tile.iter().enumerate() {
                    for (v, sum) in row.iter().enumerate() {
                        _mm512_storeu_ps(sums.add((m * V + v) * LANES), *sum);
                    }
                }
            }
        }
    };
}

tile!(single, "avx512f", |sum, left, right| _mm512_fmadd_ps(
    _mm512_castsi512_ps(left),
    _mm512_castsi512_ps(right),
    *sum
));
tile!(pair, "avx512f,avx512bf16", |sum, left, right| _mm512_dpbf16_ps(
    *sum,
    core::mem::transmute::<__m512i, __m512bh>(left),
    core::mem::transmute::<__m512i, __m512bh>(right)
));

/// Sums up the `pieces`, `rows` of each left operand times its packed NR micro-panel of `vectors` vectors, in `sums`, which is
/// row-major with `vectors * 16` columns. `rows` is a height of [`Tiling::tile_height`].
///
/// # Safety
/// The processor has AVX-512F, and AVX-512 BF16 for [`Unit::Pair`]; the pieces and `sums` are valid for the shapes.
pub(super) unsafe fn multiply(
    unit: Unit,
    (rows, vectors): (usize, usize),
    pieces: &[PanelProduct],
    begin: Begin,
    sums: *mut f32,
) {
    macro_rules! dispatch {
        ($($rows:literal x $vectors:literal),+) => {
            // SAFETY: the caller's promise is the same.
            unsafe {
                match (unit, rows, vectors) {
                    $(
                        (Unit::Single, $rows, $vectors) => single::<$rows, $vectors>(pieces, begin, sums),
                        (Unit::Pair, $rows, $vectors) => pair::<$rows, $vectors>(pieces, begin, sums),
                    )+
                    _ => unreachable!("there is no tile of {rows} rows and {vectors} vectors"),
                }
            }
        };
    }
    dispatch!(16 x 1, 8 x 1, 4 x 1, 2 x 1, 1 x 1, 8 x 2, 4 x 2, 2 x 2, 1 x 2, 8 x 3, 4 x 3, 2 x 3, 1 x 3)
}
