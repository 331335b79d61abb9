//! Products of groups of rows, each with a matrix of its own.
//!
//! One launch has a block for each tile of 128 rows of a group and 128 columns (32 where there are no more), whatever rows each group has: how
//! many that are, the device knows alone. There are blocks for as many tiles as there can be; those behind the last one end at once.
//!
//! Codes of quantized matrices are widened into memory that every product reuses, those of some groups at a time
//! ([`quantized_at_once`]); a launch for these groups follows.

use candle_core::{DType, Device, Result, Tensor};
use peft_tune_core::plan::products::{GROUP_ROWS, quantized_at_once};

use crate::gpu::{
    Argument, GROUPS, OPERANDS, Source, address, arguments, element_name, empty, pointers, scratch, source,
};
use crate::ops::matmul::grouped::{GroupFactors, GroupTerm};
use crate::ops::matmul::{Factor, MAX_TERMS, QuantizedMatrix, rows_of};
use crate::ops::offsets::{Offsets, OnDevice};

static SOURCE: Source = source!("grouped", GROUPS, OPERANDS);

const THREADS: usize = 256;
/// Values that a step sums over, and steps that lie in shared memory (grouped.cu).
const DEPTH: usize = 32;
const STAGES: usize = 3;
/// Columns of a tile: the first that has all of them.
const COLUMNS: [usize; 2] = [32, 128];
/// Columns of a tile in F32.
const PLAIN_COLUMNS: usize = 64;

/// The matrices of a term as a launch finds them.
enum Matrices<'a> {
    /// (G, rows, columns)
    Stacked(Tensor),
    /// Addresses of all, and the tensors that lie there, which live as long.
    Table { addresses: Tensor, _there: Vec<Tensor> },
    /// Codes, which are widened before each launch.
    Codes(Vec<&'a dyn QuantizedMatrix>),
}

/// A term whose operands are of the result's dtype.
struct Operand<'a> {
    x: Tensor,
    matrices: Matrices<'a>,
    /// Elements of one matrix.
    elements: usize,
    scale: f64,
}

impl<'a> Operand<'a> {
    fn new(term: &GroupTerm<'a>) -> Result<Self> {
        let (dtype, (rows, columns)) = (term.x.dtype(), term.w.dims2(0)?);
        Ok(Self {
            x: rows_of(term.x)?,
            matrices: Matrices::new(&term.w, dtype, term.x.device())?,
            elements: rows * columns,
            scale: term.scale,
        })
    }
}

impl<'a> Matrices<'a> {
    fn new(factors: &GroupFactors<'a>, dtype: DType, device: &Device) -> Result<Self> {
        let each = match factors {
            GroupFactors::Stacked(tensor) => return Ok(Self::Stacked(tensor.to_dtype(dtype)?.contiguous()?)),
            GroupFactors::Each(each) => each,
        };
        let codes = each.iter().filter_map(|factor| match factor {
            Factor::QuantizedMatrix(quantized) => Some(*quantized),
            Factor::Dense(_) => None,
        });
        let codes: Vec<&dyn QuantizedMatrix> = codes.collect();
        if codes.len() == each.len() {
            return Ok(Self::Codes(codes));
        }
        if !codes.is_empty() {
            candle_core::bail!("grouped products: matrices of which only some are quantized");
        }
        let mut stay = true;
        let mut held = Vec::with_capacity(each.len());
        for factor in each {
            if let Factor::Dense(tensor) = factor {
                stay &= tensor.dtype() == dtype && tensor.is_contiguous();
                held.push(tensor.to_dtype(dtype)?.contiguous()?);
            }
        }
        let addresses = held.iter().map(address).collect::<Result<Vec<u64>>>()?;
        // Those of tensors that are freed behind the launch are not worth keeping.
        Ok(Self::Table {
            addresses: pointers(addresses, device, stay)?,
            _there: held,
        })
    }
}

/// The sum of scale x w over the terms, with the transposes of w where `transposed`; shapes have been checked.
pub(crate) fn sum(
    terms: &[GroupTerm<'_>],
    offsets: &Offsets,
    (rows, columns): (usize, usize),
    transposed: bool,
) -> Result<Tensor> {
    let (dtype, device) = (terms[0].x.dtype(), terms[0].x.device());
    let mut operands: Vec<Operand<'_>> = terms.iter().map(Operand::new).collect::<Result<_>>()?;
    operands.retain(|operand| operand.scale != 0.0);
    if operands.is_empty() || rows * columns == 0 {
        return Tensor::zeros((rows, columns), dtype, device);
    }
    // What is scaled comes first, so that nothing is divided by a scale where the others have none.
    operands.sort_by_key(|operand| operand.scale == 1.0);
    let result = empty((rows, columns), dtype, device)?;
    let launch = Sums {
        operands: &operands,
        on_device: offsets.on_device(device)?,
        result: &result,
        transposed,
    };
    let codes: usize = operands.iter().map(Operand::elements_of_codes).sum();
    if codes == 0 {
        launch.run(0, offsets.groups(), &[])?;
        return Ok(result);
    }
    let at_once = quantized_at_once(offsets.groups(), codes);
    for first in (0..offsets.groups()).step_by(at_once) {
        let count = at_once.min(offsets.groups() - first);
        let place = scratch(at_once * codes, dtype, device)?;
        let widened = widened(&operands, (first, count), &place)?;
        launch.run(first, count, &widened)?;
    }
    Ok(result)
}

impl Operand<'_> {
    fn elements_of_codes(&self) -> usize {
        match self.matrices {
            Matrices::Codes(_) => self.elements,
            Matrices::Stacked(_) | Matrices::Table { .. } => 0,
        }
    }
}

/// The codes of `count` groups from `first` on, widened beside each other in `place`: a tensor for each term that has some.
fn widened(operands: &[Operand<'_>], (first, count): (usize, usize), place: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let mut start = 0;
    let mut all = Vec::with_capacity(operands.len());
    for operand in operands {
        let Matrices::Codes(codes) = &operand.matrices else {
            all.push(None);
            continue;
        };
        let mine = place.narrow(0, start, count * operand.elements)?;
        start += count * operand.elements;
        for (group, codes) in codes[first..first + count].iter().enumerate() {
            let of_group = mine.narrow(0, group * operand.elements, operand.elements)?;
            codes.fill(&of_group.reshape(codes.dims2())?)?;
        }
        all.push(Some(mine));
    }
    Ok(all)
}

/// Launches of one sum.
struct Sums<'a> {
    operands: &'a [Operand<'a>],
    on_device: &'a OnDevice,
    result: &'a Tensor,
    transposed: bool,
}

impl Sums<'_> {
    /// Sums for `count` groups from `first` on.
    fn run(&self, first: usize, count: usize, widened: &[Option<Tensor>]) -> Result<()> {
        let (_, columns) = self.result.dims2()?;
        let mut parts = Vec::with_capacity(self.operands.len());
        for (number, operand) in self.operands.iter().enumerate() {
            let (w, table) = match &operand.matrices {
                Matrices::Stacked(tensor) => (Some(tensor.narrow(0, first, count)?), None),
                Matrices::Table { addresses, .. } => (None, Some(addresses.narrow(0, first, count)?)),
                Matrices::Codes(_) => (widened.get(number).cloned().flatten(), None),
            };
            parts.push((operand, first_row(&operand.x)?, w, table));
        }
        let mut arguments = arguments! {
            self.result, &self.on_device.map, &self.on_device.offsets, first as u32, count as u32, columns as u32,
            parts.len() as u32,
        }
        .to_vec();
        let mut scales: Vec<f64> = parts.iter().map(|(operand, ..)| operand.scale).collect();
        arguments.push(Argument::F32(scales.last().copied().unwrap_or(1.0) as f32));
        scales.insert(0, scales.first().copied().unwrap_or(1.0));
        for ((operand, x, w, table), scales) in parts.iter().zip(scales.windows(2)) {
            let (stride, depth) = (operand.x.stride()[0], operand.x.dims2()?.1);
            // Of one row, candle says what it likes.
            let stride = if operand.x.is_contiguous() { depth } else { stride };
            arguments.extend(arguments! {
                x, w.as_ref(), table.as_ref(), stride as u32, depth as u32, (scales[0] / scales[1]) as f32,
            });
        }
        for _ in parts.len()..MAX_TERMS {
            arguments.extend([Argument::Maybe(None); 3]);
            arguments.extend(arguments! { 0u32, 0u32, 1f32 });
        }
        self.launch(columns, &arguments)
    }

    fn launch(&self, columns: usize, arguments: &[Argument<'_>]) -> Result<()> {
        let element = element_name(self.result.dtype()).unwrap_or_default();
        let form = if self.transposed { "nt" } else { "nn" };
        let is_plain = self.result.dtype() == DType::F32;
        let width = match is_plain {
            true => PLAIN_COLUMNS,
            false => COLUMNS
                .into_iter()
                .find(|width| columns <= *width)
                .unwrap_or(COLUMNS[1]),
        };
        let name = match is_plain {
            true => format!("grouped_{form}_{element}"),
            false => format!("grouped_{form}_{element}_{width}"),
        };
        let tiles = self.on_device.map.dim(0)?;
        let mut launch = SOURCE.launch(&name, [columns.div_ceil(width), tiles, 1], [THREADS, 1, 1]);
        if !is_plain {
            let of_w = match self.transposed {
                true => width * (DEPTH + 8),
                false => DEPTH * (width + 8),
            };
            launch.shared_bytes = 2 * STAGES * (GROUP_ROWS * (DEPTH + 8) + of_w);
        }
        launch.run(self.result.device(), arguments)
    }
}

/// `into` (G M, N) F32 += alpha a^T b of each group's rows of a (R, M) and b (R, N); shapes have been checked.
pub(crate) fn tn_add(a: &Tensor, b: &Tensor, offsets: &Offsets, alpha: f64, into: &Tensor) -> Result<()> {
    let dtype = if a.dtype() == b.dtype() { a.dtype() } else { DType::F32 };
    let (a, b) = (rows_of(&a.to_dtype(dtype)?)?, rows_of(&b.to_dtype(dtype)?)?);
    let ((total, rows), (_, columns)) = (a.dims2()?, b.dims2()?);
    if total * rows * columns == 0 {
        return Ok(());
    }
    let element = element_name(dtype).unwrap_or_default();
    let (name, [height, width]) = match dtype {
        DType::F32 => ("grouped_gradient_f32".to_owned(), [PLAIN_COLUMNS; 2]),
        _ if rows <= columns => (format!("grouped_wide_{element}"), COLUMNS),
        _ => (format!("grouped_tall_{element}"), [COLUMNS[1], COLUMNS[0]]),
    };
    let tiles = rows.div_ceil(height) * columns.div_ceil(width);
    let mut launch = SOURCE.launch(&name, [tiles, offsets.groups(), 1], [THREADS, 1, 1]);
    if dtype != DType::F32 {
        launch.shared_bytes = 2 * STAGES * DEPTH * (height + width + 16);
    }
    let stride = |tensor: &Tensor, columns: usize| match tensor.is_contiguous() {
        true => columns as u32,
        false => tensor.stride()[0] as u32,
    };
    let strides = (stride(&a, rows), stride(&b, columns));
    let (a, b, on_device) = (first_row(&a)?, first_row(&b)?, offsets.on_device(into.device())?);
    let arguments = arguments! {
        into, &on_device.offsets, &a, &b, strides.0, strides.1, rows as u32, columns as u32, alpha as f32,
    };
    launch.run(into.device(), &arguments)
}

/// First row of a tensor, which has the address of all.
fn first_row(tensor: &Tensor) -> Result<Tensor> {
    tensor.narrow(0, 0, 1)
}
