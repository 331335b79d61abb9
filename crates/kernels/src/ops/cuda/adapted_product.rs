//! Products of quantized weights that take an adapter's product along: one sum, longer by the ranks.
//!
//! | sum | left operand, a copy | right operand, in the scratch |
//! |---|---|---|
//! | y_i = x W_i^T + s_i xa_i B_i^T | [x \| xa of all \| 0] | [W_i \| 0, s_i B_i, 0] |
//! | dx = dy W + d_xa A | [dy \| d_xa \| 0] | W, below it A and zeros |
//!
//! The other way, two products of which the second adds to the first's result, writes and reads the result once more. Which is the
//! faster depends on what the library hides, so that it is timed, once a shape ([`gpu::is_other_faster`]). Memory is the same both
//! ways: what a step takes at most must not depend on what was timed.

use candle_core::{Result, Tensor};
use peft_tune_core::plan::products::adapted_product::{PACK, depth, row};

use super::matmul;
use crate::gpu::{self, Argument, Gemm, Matrix, Source, arguments, element_name, empty, scratch, source};
use crate::kernel_form::note_longer_sums;
use crate::ops::matmul::{Adapted, Factor, QuantizedMatrix, Term};

static SOURCE: Source = source!("adapted_product");

const THREADS: usize = 256;

/// Outputs of several projections of x (T, in), whose adapters have u (T, ranks) side by side. Whether these are taken has been checked.
pub(crate) fn nt(x: &Tensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Vec<Tensor>> {
    let left = Left::new(x, u)?;
    let (tokens, widths) = (x.dims2()?.0, all.iter().map(|one| one.w.dims2().0));
    let results: Vec<Tensor> = widths
        .clone()
        .map(|width| empty((tokens, width), x.dtype(), x.device()))
        .collect::<Result<_>>()?;
    left.right(widths.max().unwrap_or(0) * left.row)?;
    let apart = || {
        for (one, result) in all.iter().zip(&results) {
            let u = u.narrow(1, one.column, one.b.dims2()?.1)?;
            let terms = [
                Term::new(x, Factor::QuantizedMatrix(one.w), 1.0),
                Term::new(&u, one.b, one.scale),
            ];
            matmul::sum_into(&terms, true, None, result)?;
        }
        Ok(())
    };
    let longer = || {
        left.fill()?;
        for (one, result) in all.iter().zip(&results) {
            left.times_transposed(one, result)?;
        }
        Ok(())
    };
    left.run(&results, all[0].w, "nt", [&apart, &longer])?;
    Ok(results)
}

/// The gradient of one projection's input, dy W + d_xa A. Whether it is taken has been checked.
pub(crate) fn nn(dy: &Tensor, w: &dyn QuantizedMatrix, d_xa: &Tensor, a: &Tensor) -> Result<Tensor> {
    let result = empty((dy.dims2()?.0, w.dims2().1), dy.dtype(), dy.device())?;
    let left = Left::new(dy, d_xa)?;
    left.right(left.sum * w.dims2().1)?;
    let apart = || {
        let terms = [Term::new(dy, Factor::QuantizedMatrix(w), 1.0), Term::new(d_xa, a, 1.0)];
        matmul::sum_into(&terms, false, None, &result)
    };
    let longer = || {
        left.fill()?;
        left.times(w, a, &result)
    };
    left.run(std::slice::from_ref(&result), w, "nn", [&apart, &longer])?;
    Ok(result)
}

/// The left operand of longer sums.
struct Left<'a> {
    x: &'a Tensor,
    u: &'a Tensor,
    /// (T, row): the copy.
    room: Tensor,
    /// Elements of its rows, and the values of a sum.
    row: usize,
    sum: usize,
}

impl<'a> Left<'a> {
    fn new(x: &'a Tensor, u: &'a Tensor) -> Result<Self> {
        let ((tokens, width), ranks) = (x.dims2()?, u.dims2()?.1);
        let row = row(width, ranks);
        Ok(Self {
            x,
            u,
            room: empty((tokens, row), x.dtype(), x.device())?,
            row,
            sum: depth(width, ranks),
        })
    }

    /// Room for so many elements of the right operand.
    fn right(&self, elements: usize) -> Result<Tensor> {
        scratch(elements, self.x.dtype(), self.x.device())
    }

    /// Copies x and u beside each other.
    fn fill(&self) -> Result<()> {
        let ((tokens, width), ranks) = (self.x.dims2()?, self.u.dims2()?.1);
        let arguments = arguments! {
            self.x, self.u, &self.room, tokens as u32, width as u32, ranks as u32, self.row as u32,
        };
        self.launch("beside", tokens * self.row, &arguments)
    }

    /// result = x W^T + s u B^T.
    fn times_transposed(&self, one: &Adapted<'_>, result: &Tensor) -> Result<()> {
        let ((rows, width), rank) = (one.w.dims2(), one.b.dims2()?.1);
        let right = self.right(rows * self.row)?.reshape((rows, self.row))?;
        one.w.fill(&right)?;
        let more = self.sum - width;
        let arguments = arguments! {
            one.b, one.scale as f32, &right, rows as u32, rank as u32, one.column as u32, width as u32, more as u32,
            self.row as u32,
        };
        self.launch("columns", rows * more, &arguments)?;
        self.product(&right.narrow(1, 0, self.sum)?, true, result)
    }

    /// result = x W + u A.
    fn times(&self, w: &dyn QuantizedMatrix, a: &Tensor, result: &Tensor) -> Result<()> {
        let (rows, columns) = w.dims2();
        let right = self.right(self.sum * columns)?.reshape((self.sum, columns))?;
        w.fill(&right.narrow(0, 0, rows)?)?;
        let below = right.narrow(0, rows, self.sum - rows)?;
        let arguments = arguments! { a, &below, a.elem_count() as u32, below.elem_count() as u32 };
        self.launch("below", below.elem_count(), &arguments)?;
        self.product(&right, false, result)
    }

    fn product(&self, right: &Tensor, transposed: bool, result: &Tensor) -> Result<()> {
        let left = self.room.narrow(1, 0, self.sum)?;
        let right = Matrix::new(right)?;
        Gemm::new(Matrix::new(&left)?, if transposed { right.t() } else { right }).run(result)
    }

    fn launch(&self, kernel: &str, elements: usize, arguments: &[Argument<'_>]) -> Result<()> {
        let name = format!("longer_{kernel}_{}", element_name(self.x.dtype()).unwrap_or_default());
        let blocks = elements.div_ceil(PACK * THREADS);
        let launch = SOURCE.launch(&name, [blocks, 1, 1], [THREADS, 1, 1]);
        launch.run(self.x.device(), arguments)
    }

    /// Takes the faster of both ways.
    fn run(&self, results: &[Tensor], w: &dyn QuantizedMatrix, form: &str, ways: [gpu::Way<'_>; 2]) -> Result<()> {
        let name = || {
            let columns = results.iter().map(|result| result.dim(1).map_or(0, |width| width));
            let columns: Vec<String> = columns.map(|width| width.to_string()).collect();
            format!(
                "{} {} {form} {}x{} to {} ranks {}",
                w.storage(),
                self.x.dtype().as_str(),
                self.x.dim(0).unwrap_or(0),
                self.x.dim(1).unwrap_or(0),
                columns.join("+"),
                self.u.dim(1).unwrap_or(0)
            )
        };
        if gpu::is_other_faster(self.x.device(), name, ways)? {
            note_longer_sums();
            return ways[1]();
        }
        ways[0]()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::gpu::{emulated, has_compiler};
    use crate::ops::cuda::codes::Codes;
    use crate::ops::matmul::{nn_adapted, nt_adapted, takes_adapter};
    use crate::ops::oracle::{assert_close, random, rounded};
    use crate::quant::{Nf4, Quantized};

    fn codes(rows: usize, columns: usize, seed: u64) -> (Codes<Nf4>, Tensor) {
        let weight = random(&[rows, columns], seed).to_dtype(DType::F32).unwrap();
        let codes = Nf4::quantize(&weight, false).unwrap();
        let wide = codes.dequantize_rows(0..rows, DType::F32).unwrap();
        (Codes::new(codes), wide)
    }

    #[test]
    fn sums_with_adapters_match_f64() {
        if !has_compiler() {
            return;
        }
        for dtype in [DType::BF16, DType::F16] {
            let as_read = |wide: &Tensor| wide.to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap();
            // Ranks of whole packs and others, and those of several projections side by side.
            for ranks in [vec![3], vec![8], vec![4, 5]] {
                let all: usize = ranks.iter().sum();
                let ((x, x64), (u, u64)) = (
                    rounded(&random(&[17, 72], 1), dtype),
                    rounded(&random(&[17, all], 2), dtype),
                );
                let mut columns = ranks.iter().scan(0, |column, rank| {
                    *column += rank;
                    Some((*column - rank, *rank))
                });
                let parts: Vec<_> = columns
                    .by_ref()
                    .enumerate()
                    .map(|(seed, (column, rank))| {
                        let (codes, wide) = codes(216, 72, 3 + seed as u64);
                        let (b, b64) = rounded(&random(&[216, rank], 5 + seed as u64), dtype);
                        let u64 = u64.narrow(1, column, rank).unwrap().contiguous().unwrap();
                        let adapter = u64.matmul(&(b64 * 0.3).unwrap().t().unwrap()).unwrap();
                        let base = x64.matmul(&as_read(&wide).t().unwrap()).unwrap();
                        (codes, b, column, (base + adapter).unwrap())
                    })
                    .collect();
                let adapted: Vec<Adapted<'_>> = parts
                    .iter()
                    .map(|(codes, b, column, _)| Adapted {
                        w: codes,
                        b,
                        column: *column,
                        scale: 0.3,
                    })
                    .collect();
                let got = emulated(|| nt_adapted(&x, &u, &adapted)).unwrap();
                for (got, (.., expected)) in got.iter().zip(&parts) {
                    assert_close(got, expected, "x W^T + s u B^T");
                }
            }
            let (codes, wide) = codes(72, 216, 8);
            let ((dy, dy64), (d_xa, d_xa64), (a, a64)) = (
                rounded(&random(&[17, 72], 1), dtype),
                rounded(&random(&[17, 5], 2), dtype),
                rounded(&random(&[5, 216], 3), dtype),
            );
            let expected = (dy64.matmul(&as_read(&wide)).unwrap() + d_xa64.matmul(&a64).unwrap()).unwrap();
            let got = emulated(|| nn_adapted(&dy, Factor::QuantizedMatrix(&codes), &d_xa, &a)).unwrap();
            assert_close(&got, &expected, "dy W + d_xa A");
        }
    }

    #[test]
    fn what_a_copy_cannot_gain_on_is_left_alone() {
        let zeros = |rows, columns| Tensor::zeros((rows, columns), DType::BF16, &Device::Cpu).unwrap();
        let (codes, _) = codes(72, 216, 1);
        let (a, d_xa) = (zeros(5, 216), zeros(17, 5));
        let take = |dy: &Tensor, d_xa: &Tensor| {
            let w = Factor::QuantizedMatrix(&codes);
            emulated(|| takes_adapter(dy, &w, d_xa, &a)).unwrap()
        };
        assert!(take(&zeros(17, 72), &d_xa));
        assert!(!take(&zeros(1, 72), &zeros(1, 5)), "a single token");
        assert!(!take(&zeros(72, 17).t().unwrap(), &d_xa), "columns");
        let (dense, dy) = (zeros(72, 216), zeros(17, 72));
        assert!(!emulated(|| takes_adapter(&dy, &Factor::Dense(&dense), &d_xa, &a)).unwrap());
        assert!(
            !takes_adapter(&dy, &Factor::QuantizedMatrix(&codes), &d_xa, &a).unwrap(),
            "the CPU"
        );
        assert!(nn_adapted(&dy, Factor::QuantizedMatrix(&codes), &d_xa, &a).is_err());
    }
}
