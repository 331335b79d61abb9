//! Products and what adapters make of them, against F64.

use candle_core::{DType, Device, Result, Tensor};

use super::on::On;
use crate::base::{Weight, WeightKind};
use peft_tune_core::recipe::{ActivationQuantization, Precision};
use peft_tune_kernels::compare::{error, worst};
use peft_tune_kernels::gpu::TimedProducts;
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::{Adapted, Factor, Term};

/// Sums of 14,336 terms for few results, which a GPU splits over its multiprocessors. Those of 16 bits are rounded once: partial sums in
/// that type would err by more. By each algorithm that is timed, of which one is taken.
pub(super) fn check_long_matmul(on: &On<'_>) -> Result<f64> {
    const TERMS: usize = 14_336;
    // In F32 the sums themselves are rounded.
    let allowed = if on.dtype == DType::F32 { 10.0 } else { 1.0 };
    let _timed = TimedProducts::begin(true);
    let (x, x64) = on.pair(&[32, TERMS], 1)?;
    let (w, w64) = on.pair(&[48, TERMS], 2)?;
    let y = matmul::nt_sum(&[Term::new(&x, &w, 1.0)])?;
    let (u, u64) = on.pair(&[TERMS, 16], 3)?;
    let (dy, dy64) = on.pair(&[TERMS, 40], 4)?;
    let sums = Tensor::ones((16, 40), DType::F32, on.device)?;
    matmul::tn_add(&u, &dy, 1.0, &sums)?;
    // Once more, by what was chosen.
    let again = matmul::nt_sum(&[Term::new(&x, &w, 1.0)])?;
    let (expected, gradient) = (x64.matmul(&w64.t()?)?, (u64.t()?.contiguous()?.matmul(&dy64)? + 1.0)?);
    let errors = [
        error(&y, &expected)?,
        error(&sums, &gradient)?,
        error(&again, &expected)?,
    ];
    Ok(worst(&errors) / allowed)
}

pub(super) fn check_matmul(on: &On<'_>) -> Result<f64> {
    let ((x, x64), (w, w64)) = (on.pair(&[37, 64], 1)?, on.pair(&[24, 64], 2)?);
    let ((wide, wide64), (b, b64)) = (on.pair(&[37, 24], 3)?, on.pair(&[24, 8], 4)?);
    // Columns of a wider tensor, as adapters side by side are.
    let (u, u64) = (wide.narrow(1, 8, 8)?, wide64.narrow(1, 8, 8)?);
    let terms = [Term::new(&x, &w, 1.0), Term::new(&u, &b, 0.5)];
    let y = matmul::nt_sum(&terms)?;
    let expected = (x64.matmul(&w64.t()?)? + (u64.matmul(&b64.t()?)? * 0.5)?)?;
    let onto = matmul::nt_onto(&wide, &terms)?;
    let (dy, dy64) = on.pair(&[37, 24], 5)?;
    let dx = matmul::nn_sum(&[Term::new(&dy, &w, 2.0)])?;
    let into = Tensor::ones((24, 64), DType::F32, on.device)?;
    matmul::tn_add(&dy, &x, 0.25, &into)?;
    let sum = ((dy64.t()?.matmul(&x64)? * 0.25)? + 1.0)?;
    let beside = matmul::nn_beside(&[vec![Term::new(&u, &b.t()?, 1.0)], vec![Term::new(&dy, &b, 2.0)]])?;
    let beside64 = [u64.matmul(&b64.t()?)?, (dy64.matmul(&b64)? * 2.0)?];
    let thin = Tensor::zeros((8, 24), DType::F32, on.device)?;
    matmul::tn_add(&u, &dy, 1.0, &thin)?;
    Ok(worst(&[
        error(&y, &expected)?,
        error(&onto, &(&wide64 + &expected)?)?,
        error(&dx, &(dy64.matmul(&w64)? * 2.0)?)?,
        error(&into, &sum)?,
        error(&beside, &Tensor::cat(&beside64, 1)?)?,
        error(&thin, &u64.t()?.contiguous()?.matmul(&dy64)?)?,
    ]))
}

/// Checks the gradients of an adapter's output side, of B and of xa, as the engine takes them: from one reading of dy,
/// or by two products.
pub(super) fn check_adapter_gradients(on: &On<'_>) -> Result<f64> {
    let ((dy, dy64), (xa, xa64)) = (on.pair(&[300, 1160], 1)?, on.pair(&[300, 16], 2)?);
    let (b, b64) = on.pair(&[1160, 16], 3)?;
    let d_b = Tensor::ones((1160, 16), DType::F32, on.device)?;
    let (dy, xa, b) = (&dy, &xa, &b);
    let all = [matmul::AdapterGradients {
        dy,
        xa,
        b,
        d_b: &d_b,
        scale: 0.5,
    }];
    let d_xa = match matmul::reads_once(&all)? {
        true => matmul::adapter_gradients(&all)?,
        false => {
            matmul::tn_add(dy, xa, 0.5, &d_b)?;
            matmul::nn_sum(&[Term::new(dy, b, 0.5)])?
        }
    };
    let sums = ((dy64.t()?.contiguous()?.matmul(&xa64)? * 0.5)? + 1.0)?;
    Ok(worst(&[
        error(&d_xa, &(dy64.matmul(&b64)? * 0.5)?)?,
        error(&d_b, &sums)?,
    ]))
}

/// Products of NF4 weights with their adapters, forward and backward: on a GPU by both ways, of which one is taken; elsewhere by terms.
pub(super) fn check_adapted_matmul(on: &On<'_>) -> Result<f64> {
    const RANKS: [usize; 2] = [8, 5];
    let _timed = TimedProducts::begin(true);
    let all: usize = RANKS.iter().sum();
    let ((x, x64), (u, u64)) = (on.pair(&[37, 64], 1)?, on.pair(&[37, all], 2)?);
    let store = |shape: &[usize], seed| -> Result<(Weight, Tensor)> {
        let value = on.pair(shape, seed)?.1.to_dtype(DType::F32)?;
        let weight = Weight::store(value, "w", WeightKind::Linear, Precision::Nf4, on.device);
        let weight = weight.map_err(candle_core::Error::wrap)?;
        let wide = match weight.factor() {
            Factor::QuantizedMatrix(codes) => codes.dense(on.dtype)?,
            Factor::Dense(value) => value.clone(),
        };
        Ok((weight, wide.to_device(&Device::Cpu)?.to_dtype(DType::F64)?))
    };
    let (gate, gate64) = store(&[192, 64], 3)?;
    let (up, up64) = store(&[96, 64], 4)?;
    let ((b, b64), (other, other64)) = (on.pair(&[192, RANKS[0]], 5)?, on.pair(&[96, RANKS[1]], 6)?);
    let parts = [(&gate, &b, 0, 0.5), (&up, &other, RANKS[0], 0.3)];
    let outputs = match adapted(&parts) {
        Some(all) if matmul::takes_adapters(&x, &u, &all)? => matmul::nt_adapted(&x, &u, &all)?,
        _ => {
            let terms = |(w, b, column, scale): &(&Weight, &Tensor, usize, f64)| {
                let u = u.narrow(1, *column, b.dims2()?.1)?;
                matmul::nt_sum(&[Term::new(&x, w.factor(), 1.0), Term::new(&u, *b, *scale)])
            };
            parts.iter().map(terms).collect::<Result<_>>()?
        }
    };
    let expected = |w: &Tensor, b: &Tensor, column: usize, scale: f64| {
        let u = u64.narrow(1, column, b.dims2()?.1)?.contiguous()?;
        x64.matmul(&w.t()?)? + (u.matmul(&b.t()?)? * scale)?
    };
    let (down, down64) = store(&[64, 192], 7)?;
    let ((d_xa, d_xa64), (a, a64)) = (on.pair(&[37, 8], 8)?, on.pair(&[8, 192], 9)?);
    let dx = match matmul::takes_adapter(&x, &down.factor(), &d_xa, &a)? {
        true => matmul::nn_adapted(&x, down.factor(), &d_xa, &a)?,
        false => matmul::nn_sum(&[Term::new(&x, down.factor(), 1.0), Term::new(&d_xa, &a, 1.0)])?,
    };
    Ok(worst(&[
        error(&outputs[0], &expected(&gate64, &b64, 0, 0.5)?)?,
        error(&outputs[1], &expected(&up64, &other64, RANKS[0], 0.3)?)?,
        error(&dx, &(x64.matmul(&down64)? + d_xa64.matmul(&a64)?)?)?,
    ]))
}

/// Activations in 8 bits times int8 weights, forward and backward. Of 64 rows and columns a CPU's blocks and a GPU's rows are the same.
pub(super) fn check_byte_matmul(on: &On<'_>) -> Result<f64> {
    let value = on.pair(&[64, 64], 1)?.1.to_dtype(DType::F32)?;
    let weight = Weight::store(value, "w", WeightKind::Linear, Precision::Int8, on.device);
    let weight = weight.map_err(candle_core::Error::wrap)?;
    let dense = weight.exact()?.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let weight = weight.with_activations(ActivationQuantization::Int8Both);
    let ((x, x64), (dy, dy64)) = (on.pair(&[37, 64], 2)?, on.pair(&[37, 64], 3)?);
    let ((u, u64), (b, b64)) = (on.pair(&[37, 8], 4)?, on.pair(&[64, 8], 5)?);
    let y = matmul::nt_sum(&[Term::new(&x, weight.factor(), 1.0), Term::new(&u, &b, 0.5)])?;
    let dx = matmul::nn_sum(&[Term::new(&dy, weight.factor(), 2.0)])?;
    let expected = in_bytes(&x64)?.matmul(&in_bytes(&dense)?.t()?)? + (u64.matmul(&b64.t()?)? * 0.5)?;
    let gradient = in_bytes(&dy64)?.matmul(&in_bytes(&dense.t()?.contiguous()?)?.t()?)? * 2.0;
    Ok(worst(&[error(&y, &expected?)?, error(&dx, &gradient?)?]))
}

/// Each row rounded to 127ths of its largest absolute value.
fn in_bytes(rows: &Tensor) -> Result<Tensor> {
    let scale = (rows.abs()?.max_keepdim(1)? / 127.0)?;
    rows.broadcast_div(&scale)?.round()?.broadcast_mul(&scale)
}

/// The projections where their weights are quantized.
fn adapted<'a>(parts: &[(&'a Weight, &'a Tensor, usize, f64)]) -> Option<Vec<Adapted<'a>>> {
    let one = |(w, b, column, scale): &(&'a Weight, &'a Tensor, usize, f64)| match w.factor() {
        Factor::QuantizedMatrix(w) => Some(Adapted {
            w,
            b,
            column: *column,
            scale: *scale,
        }),
        Factor::Dense(_) => None,
    };
    parts.iter().map(one).collect()
}
