//! One comparison with the CPU, and how far apart results may be.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// One comparison and how it ended.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub name: String,
    /// Largest difference, relative to the largest expected value; absent where the op failed.
    pub error: Option<f64>,
    pub allowed: f64,
    /// Why the op failed.
    pub message: Option<String>,
}

impl Check {
    /// A comparison from what it gave.
    pub fn new(name: impl Into<String>, allowed: f64, error: Result<f64>) -> Self {
        let (error, message) = match error {
            Ok(error) => (Some(error), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            name: name.into(),
            error,
            allowed,
            message,
        }
    }

    /// Whether the results agree.
    pub fn passed(&self) -> bool {
        self.error.is_some_and(|error| error <= self.allowed)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.passed() { "ok  " } else { "FAIL" };
        match (&self.error, &self.message) {
            (Some(error), _) => write!(f, "{state} {}: {error:.2e} of {:.2e}", self.name, self.allowed),
            (None, message) => write!(
                f,
                "{state} {}: {}",
                self.name,
                message.as_deref().unwrap_or("no result")
            ),
        }
    }
}

/// Uniform values in [-1, 1), F64 on the CPU, the same for the same seed.
pub fn random(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut rng = rand_pcg::Pcg64::seed_from_u64(seed);
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| rng.random_range(-1.0..1.0))
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Random values rounded to `dtype` on `device`, and the same values in F64 on the CPU.
pub fn pair(shape: &[usize], seed: u64, scale: f64, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let narrow = (random(shape, seed)? * scale)?.to_dtype(dtype)?;
    Ok((narrow.to_device(device)?, narrow.to_dtype(DType::F64)?))
}

/// Largest difference to `expected`, relative to its largest value.
pub fn error(actual: &Tensor, expected: &Tensor) -> Result<f64> {
    if actual.dims() != expected.dims() {
        candle_core::bail!("shape {:?} instead of {:?}", actual.dims(), expected.dims());
    }
    let wide = |tensor: &Tensor| {
        tensor
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()
    };
    let (actual, expected) = (wide(actual)?, wide(expected)?);
    let largest = expected.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    let mut error = 0f64;
    for (actual, expected) in actual.iter().zip(&expected) {
        let difference = (actual - expected).abs();
        // A comparison with NaN is false: it must not pass for agreement.
        if difference.is_nan() {
            return Ok(f64::NAN);
        }
        error = error.max(difference);
    }
    Ok(error / largest.max(1e-12))
}

/// The largest of some errors; not a number where one is none.
pub fn worst(errors: &[f64]) -> f64 {
    match errors.iter().any(|error| error.is_nan()) {
        true => f64::NAN,
        false => errors.iter().copied().fold(0.0, f64::max),
    }
}

/// Length of the difference to `expected`, relative to its length.
pub fn distance(actual: &Tensor, expected: &Tensor) -> Result<f64> {
    let wide = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (actual, expected) = (wide(actual)?, wide(expected)?);
    let square = |tensor: &Tensor| tensor.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((square(&(actual - &expected)?)? / square(&expected)?.max(1e-300)).sqrt())
}

/// Error that rounding a result to `dtype` explains.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 4e-6,
        DType::F16 => 1.0 / 1024.0,
        _ => 1.0 / 128.0,
    }
}

/// Calls `body` with the CPU's own forms, also where the tests emulate a GPU.
pub fn on_cpu<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(any(test, feature = "emulator"))]
    return crate::gpu::not_emulated(body);
    #[cfg(not(any(test, feature = "emulator")))]
    body()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_no_number_is_the_worst_wherever_it_stands() {
        assert_eq!(worst(&[0.5, 0.25]), 0.5);
        for errors in [[f64::NAN, 0.5], [0.5, f64::NAN]] {
            assert!(worst(&errors).is_nan());
        }
    }
}
