//! Oracle for the tests of the ops: random tensors, and comparison with an F64 result.

use candle_core::{DType, Device, Result, Tensor, Var};
use rand::{RngExt, SeedableRng};

/// Uniform values in [-1, 1), F64, the same for the same seed.
pub(super) fn random(shape: &[usize], seed: u64) -> Tensor {
    let mut rng = rand_pcg::Pcg64::seed_from_u64(seed);
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| rng.random_range(-1.0..1.0))
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// `tensor` rounded to `dtype`, and the F64 tensor of the rounded values: input of the op and of its oracle.
pub(super) fn rounded(tensor: &Tensor, dtype: DType) -> (Tensor, Tensor) {
    let narrow = tensor.to_dtype(dtype).unwrap();
    let exact = narrow.to_dtype(DType::F64).unwrap();
    (narrow, exact)
}

/// Largest difference to the F64 `expected`, relative to the largest expected value.
pub(super) fn error(actual: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(actual.dims(), expected.dims());
    if expected.elem_count() == 0 {
        return 0.0;
    }
    let largest = |tensor: Tensor| tensor.flatten_all()?.max(0)?.to_scalar::<f64>();
    let measure = || -> Result<f64> {
        let expected = expected.to_dtype(DType::F64)?;
        let difference = (actual.to_dtype(DType::F64)? - &expected)?.abs()?;
        Ok(largest(difference)? / largest(expected.abs()?)?.max(1e-12))
    };
    let error = measure().unwrap();
    assert!(!error.is_nan(), "a value is not a number");
    error
}

/// Error that rounding the result to `dtype` explains.
pub(super) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        DType::F16 => 1.0 / 1024.0,
        _ => 1.0 / 128.0,
    }
}

/// Fails where `actual` is further from the F64 `expected` than rounding to its dtype explains.
#[track_caller]
pub(super) fn assert_close(actual: &Tensor, expected: &Tensor, what: &str) {
    let (error, allowed) = (error(actual, expected), tolerance(actual.dtype()));
    assert!(error <= allowed, "{what}: error {error:.2e} is above {allowed:.2e}");
}

/// Gradients of sum(f(inputs) * weights) with respect to each input, by candle's autograd in F64.
pub(super) fn autograd(inputs: &[&Tensor], weights: &Tensor, f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Vec<Tensor> {
    let variables: Vec<Var> = inputs.iter().map(|input| Var::from_tensor(input).unwrap()).collect();
    let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let loss = (f(&tensors).unwrap() * weights).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    tensors
        .iter()
        .map(|tensor| gradients.get(tensor).unwrap().clone())
        .collect()
}
