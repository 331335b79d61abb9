//! Products of activations in 8 bits with quantized weights, by the library's products of bytes.
//!
//! | step | kernel |
//! |---|---|
//! | the weight as codes (columns, depth), one scale for each column of the result | of its storage |
//! | for each block of rows: x as codes, one scale a row | `round_rows` |
//! | their sums, whole numbers | cuBLASLt |
//! | sum times both scales, onto the result | `scale_sums` |
//!
//! On the CPU a weight has a factor for each 64 codes of a sum. Here it has one for the whole sum, which is what tensor cores multiply
//! without a stop: the weight is rounded once more, to 127ths of the largest value of a row or, for gradients, of a column.

use candle_core::{DType, Result, Tensor};
use peft_tune_core::plan::products::device_int8::{BANDS, Operands};

use crate::gpu::{self, Argument, BYTES, Source, arguments, element_name, multiply_bytes, scratch, source};
use crate::ops::matmul::{QuantizedMatrix, rows_of};
use crate::quant::ByteRows;

static SOURCE: Source = source!("byte_products", BYTES);

const THREADS: usize = 256;
/// Elements of a thread, where rows allow it.
const FOUR: usize = 4;

/// alpha x w^T, or alpha x w where not `transposed`, into the result; onto `old` where there is one, which may be the result itself.
/// Shapes have been checked; the result has contiguous rows.
pub(super) fn multiply(
    (x, alpha): (&Tensor, f64),
    (w, transposed): (&dyn QuantizedMatrix, bool),
    old: Option<&Tensor>,
    result: &Tensor,
) -> Result<()> {
    let x = rows_of(x)?;
    let ((rows, depth), columns) = (x.dims2()?, result.dims2()?.1);
    multiply_in(
        Operands::new([rows, columns, depth]),
        (&x, alpha),
        (w, transposed),
        old,
        result,
    )
}

/// Multiplies as [`multiply`] does, so many rows at a time as `operands` says.
fn multiply_in(
    operands: Operands,
    (x, alpha): (&Tensor, f64),
    (w, transposed): (&dyn QuantizedMatrix, bool),
    old: Option<&Tensor>,
    result: &Tensor,
) -> Result<()> {
    let (rows, device) = (x.dims2()?.0, x.device());
    let codes = scratch(operands.codes(), DType::U8, device)?;
    let (right, left) = (
        part(&codes, 0, [operands.columns, operands.depth])?,
        part(
            &codes,
            operands.columns * operands.depth,
            [operands.rows, operands.depth],
        )?,
    );
    let scales = scratch(operands.scales(), DType::F32, device)?;
    let of_columns = scales.narrow(0, 0, operands.columns)?;
    let of_rows = scales.narrow(0, operands.columns, operands.rows)?;
    let bands = scales.narrow(0, operands.columns + operands.rows, operands.columns * BANDS)?;
    let sums = scratch(operands.sums(), DType::U32, device)?.reshape((operands.rows, operands.columns))?;
    w.fill_byte_rows(&ByteRows {
        codes: &right,
        scales: &of_columns,
        bands: &bands,
        of_columns: !transposed,
    })?;
    for start in (0..rows).step_by(operands.rows.max(1)) {
        let count = operands.rows.min(rows - start);
        let part = |tensor: &Tensor| tensor.narrow(0, start, count);
        let (left, sums) = (left.narrow(0, 0, count)?, sums.narrow(0, 0, count)?);
        round_rows(&part(x)?, &left, &of_rows)?;
        multiply_bytes(&left, &right, &sums)?;
        let old = old.map(part).transpose()?;
        scale_sums(&sums, &of_rows, &of_columns, alpha, old.as_ref(), &part(result)?)?;
    }
    Ok(())
}

fn part(codes: &Tensor, start: usize, [rows, columns]: [usize; 2]) -> Result<Tensor> {
    codes.narrow(0, start, rows * columns)?.reshape((rows, columns))
}

/// Rows of x as codes, and their scales.
fn round_rows(x: &Tensor, codes: &Tensor, scales: &Tensor) -> Result<()> {
    let ((rows, width), whole) = (x.dims2()?, codes.dims2()?.1);
    let ((name, _), apart, first) = (kernel("round_rows", width, &[x])?, apart(x)?, first_row(x)?);
    let arguments = arguments! { &first, codes, scales, apart as u64, width as u32, whole as u32 };
    let launch = SOURCE.launch(&name, [rows, 1, 1], [THREADS, 1, 1]);
    launch.run(x.device(), &arguments)
}

/// The result from the sums of its codes.
fn scale_sums(
    sums: &Tensor,
    of_rows: &Tensor,
    of_columns: &Tensor,
    alpha: f64,
    old: Option<&Tensor>,
    result: &Tensor,
) -> Result<()> {
    let ((rows, columns), whole) = (result.dims2()?, sums.dims2()?.1);
    let mut tensors = vec![result];
    tensors.extend(old);
    let (name, pack) = kernel("scale_sums", columns, &tensors)?;
    let (first_old, old_apart) = (old.map(first_row).transpose()?, old.map(apart).transpose()?);
    let first = first_row(result)?;
    let arguments = arguments! {
        sums, of_rows, of_columns, alpha as f32, first_old.as_ref(), old_apart.unwrap_or(0) as u64, &first,
        apart(result)? as u64, rows as u32, columns as u32, whole as u32,
    };
    let threads = rows * (columns / pack);
    let launch = SOURCE.launch(&name, [threads.div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
    launch.run(result.device(), &arguments)
}

/// The form of a kernel for rows of `width` elements, and how many a thread takes: four where all `tensors` allow it.
fn kernel(name: &str, width: usize, tensors: &[&Tensor]) -> Result<(String, usize)> {
    let mut is_even = width.is_multiple_of(FOUR);
    for tensor in tensors {
        let places = [apart(tensor)?, tensor.layout().start_offset()];
        is_even &= places.iter().all(|place| place.is_multiple_of(FOUR));
    }
    let element = element_name(tensors[0].dtype()).unwrap_or_default();
    let pack = if is_even { FOUR } else { 1 };
    Ok((format!("{name}_{element}_{pack}"), pack))
}

/// Elements from one row to the next.
fn apart(tensor: &Tensor) -> Result<usize> {
    Ok(gpu::Matrix::new(tensor)?.stride)
}

/// First row of a matrix whose rows are not neighbours, which has the address of all.
fn first_row(tensor: &Tensor) -> Result<Tensor> {
    tensor.narrow(0, 0, 1)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use peft_tune_core::recipe::ActivationQuantization;

    use super::super::codes::Codes;
    use super::*;
    use crate::gpu::{emulated, has_compiler};
    use crate::ops::matmul::{Factor, Term, nn_sum, nt_onto, nt_sum};
    use crate::ops::oracle::{assert_close, random, rounded};
    use crate::quant::{Int8, Nf4, Quantized};

    /// Rows rounded to 127ths of their largest value, in F64.
    fn in_bytes(tensor: &Tensor) -> Tensor {
        let mut rows = tensor.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
        for row in &mut rows {
            let scale = row.iter().fold(0f64, |largest, value| largest.max(value.abs())) / 127.0;
            row.iter_mut().for_each(|value| {
                *value = if scale > 0.0 {
                    (*value / scale).round_ties_even() * scale
                } else {
                    0.0
                }
            });
        }
        Tensor::new(rows, &Device::Cpu).unwrap()
    }

    /// x w^T, or x w, of operands in bytes.
    fn expected(x: &Tensor, weight: &impl Quantized, transposed: bool) -> Tensor {
        let dense = weight.dequantize(DType::F32).unwrap();
        let right = match transposed {
            true => in_bytes(&dense),
            false => in_bytes(&dense.t().unwrap().contiguous().unwrap()),
        };
        in_bytes(x).matmul(&right.t().unwrap()).unwrap()
    }

    fn both<W: Quantized + std::fmt::Debug + Sync>(weight: W) -> Codes<W> {
        Codes {
            weight,
            activations: ActivationQuantization::Int8Both,
        }
    }

    /// Checks products as the layers call them: with an adapter's product before it, onto what was there, and alone.
    fn check<W: Quantized + std::fmt::Debug + Sync>(weight: W, tokens: usize, dtype: DType) {
        let codes = both(weight);
        let (outputs, inputs) = codes.weight.shape();
        let factor = || Factor::QuantizedMatrix(&codes);
        for transposed in [true, false] {
            let (depth, width) = if transposed {
                (inputs, outputs)
            } else {
                (outputs, inputs)
            };
            let (x, x64) = rounded(&random(&[tokens, depth], 1), dtype);
            let (u, u64) = rounded(&random(&[tokens, 4], 2), dtype);
            let (b, b64) = rounded(&random(&[4, width], 3), dtype);
            let (y, y64) = rounded(&random(&[tokens, width], 4), dtype);
            let large = expected(&x64, &codes.weight, transposed);
            let both64 = (&large + (u64.matmul(&b64).unwrap() * 0.5).unwrap()).unwrap();
            if transposed {
                let b = b.t().unwrap().contiguous().unwrap();
                let terms = [Term::new(&x, factor(), 1.0), Term::new(&u, &b, 0.5)];
                assert_close(&emulated(|| nt_sum(&terms)).unwrap(), &both64, "sum");
                assert_close(&emulated(|| nt_sum(&terms[..1])).unwrap(), &large, "alone");
                let onto = emulated(|| nt_onto(&y, &terms[..1])).unwrap();
                assert_close(&onto, &(&large + &y64).unwrap(), "onto");
            } else {
                let terms = [Term::new(&x, factor(), 1.0), Term::new(&u, &b, 0.5)];
                assert_close(&emulated(|| nn_sum(&terms)).unwrap(), &both64, "sum");
            }
        }
    }

    #[test]
    fn products_are_those_of_operands_in_bytes() {
        if !has_compiler() {
            return;
        }
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (tokens, outputs, inputs) in [(3, 64, 128), (1, 33, 20), (40, 48, 96)] {
                let (weight, _) = rounded(&random(&[outputs, inputs], 5), DType::F32);
                check(Int8::quantize(&weight).unwrap(), tokens, dtype);
                check(Nf4::quantize(&weight, false).unwrap(), tokens, dtype);
                check(Nf4::quantize(&weight, true).unwrap(), tokens, dtype);
            }
        }
    }

    #[test]
    fn rows_are_multiplied_some_at_a_time_and_within_wider_tensors() {
        if !has_compiler() {
            return;
        }
        let (weight, _) = rounded(&random(&[33, 52], 6), DType::F32);
        let codes = both(Int8::quantize(&weight).unwrap());
        // Columns that are taken four at a time, and some that are not.
        for (column, transposed, [depth, width]) in [(3, true, [52, 33]), (4, true, [52, 33]), (8, false, [33, 52])] {
            let (wide, _) = rounded(&random(&[7, 60], 7), DType::F32);
            let x = wide.narrow(1, column, depth).unwrap();
            let alone = expected(&x.contiguous().unwrap(), &codes.weight, transposed);
            let around = Tensor::full(3f32, (7, 60), &Device::Cpu).unwrap();
            let result = around.narrow(1, column, width).unwrap();
            let operands = Operands {
                rows: 3,
                ..Operands::new([7, width, depth])
            };
            emulated(|| multiply_in(operands, (&x, 2.0), (&codes, transposed), Some(&result), &result)).unwrap();
            assert_close(&result, &((alone * 2.0).unwrap() + 3.0).unwrap(), "rows");
            for row in around.to_vec2::<f32>().unwrap() {
                let beside = row[..column].iter().chain(&row[column + width..]);
                assert!(beside.copied().all(|value| value == 3.0));
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_and_zeros_are_zeros() {
        if !has_compiler() {
            return;
        }
        let (weight, _) = rounded(&random(&[16, 64], 8), DType::F32);
        let codes = both(Int8::quantize(&weight).unwrap());
        let mut rows = vec![vec![0f32; 64]; 4];
        rows[1][5] = f32::NAN;
        rows[2][63] = f32::INFINITY;
        rows[3][0] = 1.0;
        let x = Tensor::new(rows, &Device::Cpu).unwrap();
        let terms = [Term::new(&x, Factor::QuantizedMatrix(&codes), 1.0)];
        let got = emulated(|| nt_sum(&terms)).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(got[0], [0.0; 16]);
        assert!(got[1].iter().chain(&got[2]).all(|value| value.is_nan()));
        assert!(got[3].iter().all(|value| value.is_finite()));
    }

    /// Checks what docs/training.md says of the error against products of the same weights in 16 bits.
    #[test]
    fn products_are_off_by_as_much_as_the_docs_say() {
        if !has_compiler() {
            return;
        }
        let normal = |shape: (usize, usize)| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        let (x, weight) = (normal((32, 1024)), normal((64, 1024)));
        let spread = |tensor: Tensor| -> f64 {
            let mean = tensor.to_dtype(DType::F64).unwrap().sqr().unwrap().mean_all().unwrap();
            mean.to_scalar::<f64>().unwrap().sqrt()
        };
        let off = |codes: &dyn QuantizedMatrix| {
            let exact = x.matmul(&codes.dense(DType::F32).unwrap().t().unwrap()).unwrap();
            let terms = [Term::new(&x, Factor::QuantizedMatrix(codes), 1.0)];
            let got = emulated(|| nt_sum(&terms)).unwrap();
            spread((got - &exact).unwrap()) / spread(exact)
        };
        let int8 = off(&both(Int8::quantize(&weight).unwrap()));
        let nf4 = off(&both(Nf4::quantize(&weight, false).unwrap()));
        assert!((0.0095..0.0115).contains(&int8), "{int8}");
        assert!((0.0100..0.0120).contains(&nf4), "{nf4}");
    }
}
