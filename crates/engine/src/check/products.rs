//! Products and what adapters make of them, against F64.

use candle_core::{DType, Result, Tensor};

use super::ops::On;
use peft_tune_kernels::compare::{error, worst};
use peft_tune_kernels::gpu::TimedProducts;
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::Term;

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

/// Both gradients of an adapter's output side, as the engine takes them: from one reading of dy, or by two products.
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
