//! Right operands that are widened while they are packed: the codes of a quantized weight.
//!
//! A NR micro-panel of the right operand takes 16 or 48 of its rows (or columns) and a bounded part of the summed dimension. That
//! block is widened into memory that the thread keeps, a few hundred kilobytes, and packed from there: the weight never
//! exists as a whole, and after the first product nothing is allocated.

#[cfg(target_arch = "x86_64")]
use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use half::bf16;
use peft_tune_core::recipe::ActivationQuantization;

use super::operand::Order;
#[cfg(target_arch = "x86_64")]
use super::{
    instructions::Instructions,
    operand::Source,
    tile::{Line, Unit},
};
use crate::kernels;
#[cfg(target_arch = "x86_64")]
use crate::ops::scratch::resize;
use crate::ops::shape;
use crate::ops::storage::is_fused;
use crate::quant::{ByteRows, Int8Blocks};

/// A matrix whose values are made on demand, block by block.
pub trait QuantizedMatrix: Debug + Sync {
    /// (rows, columns)
    fn dims2(&self) -> (usize, usize);

    /// Bytes of the codes and their constants.
    fn bytes(&self) -> usize;

    /// Name of the storage, such as `nf4`.
    fn storage(&self) -> &'static str;

    /// Whether the blocks can be filled: the codes lie on the CPU.
    fn is_on_cpu(&self) -> bool;

    /// The whole matrix, for devices and forms that have no blocks.
    fn dense(&self, dtype: DType) -> Result<Tensor>;

    /// Quantization of the rows of the left operand in products with the matrix.
    fn activations(&self) -> ActivationQuantization;

    /// Writes a block as signed codes with a factor for each 64 columns, or `false` where its own blocks lie otherwise; see
    /// [`Quantized::fill_int8`](crate::quant::Quantized::fill_int8).
    ///
    /// # Errors
    /// Errors of [`QuantizedMatrix::fill_f32`].
    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool>;

    /// Writes the whole matrix as signed bytes, on a GPU; see [`Quantized::launch_byte_rows`](crate::quant::Quantized::launch_byte_rows).
    ///
    /// # Errors
    /// A matrix that is no codes, too little room, those of the launches.
    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> Result<()>;

    /// Writes the whole matrix into `into`, contiguous and of its shape; its dtype decides. On a GPU it may be wider.
    fn fill(&self, into: &Tensor) -> Result<()>;

    /// Writes a block, row by row, into `into` (rows times columns).
    ///
    /// # Errors
    /// A block outside the matrix, codes that are not on the CPU.
    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> Result<()>;

    /// Fills as [`QuantizedMatrix::fill_f32`] does, rounded.
    ///
    /// # Errors
    /// Errors of [`QuantizedMatrix::fill_f32`].
    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [bf16]) -> Result<()>;
}

/// The right operand w of a product.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    Dense(&'a Tensor),
    QuantizedMatrix(&'a dyn QuantizedMatrix),
}

impl<'a> From<&'a Tensor> for Factor<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Dense(tensor)
    }
}

impl Factor<'_> {
    /// Whether the fused forms take it.
    pub(super) fn is_fused(&self) -> bool {
        match self {
            Self::Dense(tensor) => is_fused(tensor),
            Self::QuantizedMatrix(quantized) => quantized.is_on_cpu() && kernels().are_own(),
        }
    }

    /// (rows, columns)
    ///
    /// # Errors
    /// A dense operand of another rank.
    pub fn dims2(&self) -> Result<(usize, usize)> {
        match self {
            Self::Dense(tensor) => tensor.dims2(),
            Self::QuantizedMatrix(quantized) => Ok(quantized.dims2()),
        }
    }

    /// Fails unless the operand has exactly the dimensions `expected`; `what` names the op and its argument.
    pub(super) fn expect(&self, expected: &[usize; 2], what: &str) -> Result<()> {
        match self {
            Self::Dense(tensor) => shape::expect(tensor, expected, what),
            Self::QuantizedMatrix(quantized) if <[usize; 2]>::from(quantized.dims2()) == *expected => Ok(()),
            Self::QuantizedMatrix(quantized) => {
                candle_core::bail!("{what}: expected shape {expected:?}, got {:?}", quantized.dims2())
            }
        }
    }

    /// A dense operand without gaps; `None` for codes.
    pub(super) fn contiguous(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Dense(tensor) => tensor.contiguous().map(Some),
            Self::QuantizedMatrix(_) => Ok(None),
        }
    }

    /// Whether the rows of the left operand are taken in 8 bits.
    pub(super) fn rounds_left(&self, order: Order) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::QuantizedMatrix(quantized) => rounds_left(*quantized, order),
        }
    }

    /// The codes of a product that takes the rows of its left operand in 8 bits; `transposed` as in [`super::nt_sum`].
    pub(in crate::ops) fn in_bytes(&self, transposed: bool) -> Option<&dyn QuantizedMatrix> {
        let order = if transposed { Order::Transposed } else { Order::Straight };
        match self {
            Self::QuantizedMatrix(codes) if rounds_left(*codes, order) => Some(*codes),
            _ => None,
        }
    }

    /// The whole operand as a tensor in `dtype`.
    pub(super) fn to_dtype(self, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Dense(tensor) => tensor.to_dtype(dtype),
            Self::QuantizedMatrix(quantized) => quantized.dense(dtype),
        }
    }
}

/// Whether products in this order take the rows of their left operand in 8 bits.
fn rounds_left(matrix: &dyn QuantizedMatrix, order: Order) -> bool {
    let row = matrix.activations().row();
    match order {
        Order::Transposed => row.forward,
        Order::Straight => row.backward,
    }
}

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

/// Memory that a thread keeps from one block to the next.
#[cfg(target_arch = "x86_64")]
#[derive(Default)]
struct Scratch {
    single: Vec<f32>,
    pair: Vec<bf16>,
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
#[cfg(target_arch = "x86_64")]
pub(super) fn forget() {
    SCRATCH.take();
}

/// Packs the NR micro-panel of `source` that starts at `column`, as [`pack::NR micro-panel`].
///
/// # Safety
/// Requirements of [`pack::NR micro-panel`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn nr_panel<I: Instructions>(
    source: &QuantizedSource<'_>,
    unit: Unit,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    let columns = column..(column + I::TILING.nr()).min(source.columns);
    let depth = units.start * unit.values()..(units.end * unit.values()).min(source.depth);
    // SAFETY: the caller's promise is the same.
    unsafe {
        match unit {
            Unit::Single => with_f32(source, columns, depth, |block| {
                I::nr_panel(block, unit, 0, 0..units.len(), nr_panel);
            }),
            Unit::Pair => with_bf16(source, columns, depth, |block| {
                I::nr_panel(block, unit, 0, 0..units.len(), nr_panel);
            }),
        }
    }
}

/// Calls `pack` with a block of `source`, widened into memory of this thread.
#[cfg(target_arch = "x86_64")]
pub(super) fn with_f32<R>(
    source: &QuantizedSource<'_>,
    columns: Range<usize>,
    depth: Range<usize>,
    pack: impl FnOnce(&Source<'_, f32>) -> R,
) -> R {
    let (width, length) = (columns.len(), depth.len());
    let (rows, columns) = source.block(columns, depth);
    SCRATCH.with_borrow_mut(|Scratch { single, .. }| {
        resize(single, width * length, 0.0);
        source.values.fill_f32(rows, columns, single).expect(CHECKED);
        pack(&part(source, single, width, length))
    })
}

/// Packs as [`with_f32`] does, rounded.
#[cfg(target_arch = "x86_64")]
pub(super) fn with_bf16<R>(
    source: &QuantizedSource<'_>,
    columns: Range<usize>,
    depth: Range<usize>,
    pack: impl FnOnce(&Source<'_, bf16>) -> R,
) -> R {
    let (width, length) = (columns.len(), depth.len());
    let (rows, columns) = source.block(columns, depth);
    SCRATCH.with_borrow_mut(|Scratch { pair, .. }| {
        resize(pair, width * length, bf16::ZERO);
        source.values.fill_bf16(rows, columns, pair).expect(CHECKED);
        pack(&part(source, pair, width, length))
    })
}

/// A widened block as an operand of its own.
#[cfg(target_arch = "x86_64")]
fn part<'a, T>(source: &QuantizedSource<'_>, values: &'a [T], columns: usize, depth: usize) -> Source<'a, T> {
    Source {
        values,
        order: source.order,
        columns,
        depth,
        stride: match source.order {
            Order::Transposed => depth,
            Order::Straight => columns,
        },
        scale: source.scale,
    }
}
