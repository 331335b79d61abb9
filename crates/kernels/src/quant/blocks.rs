//! What both formats share: reading a weight as F32 rows, and the constants of blocks.

use candle_core::{DType, Device, Result, Storage, Tensor, WithDType, bail};
use rayon::prelude::*;

use super::error::QuantError;

/// Elements that one thread quantizes or widens at a time, a multiple of every block size.
pub(super) const CHUNK: usize = 16 * 1024;

/// The elements of a weight (out, in) in F32, after checking that they are finite.
pub(super) fn to_rows(weight: &Tensor) -> std::result::Result<(usize, usize, Vec<f32>), QuantError> {
    let &[outputs, inputs] = weight.dims() else {
        return Err(QuantError::NotAMatrix {
            got: weight.dims().to_vec(),
        });
    };
    if outputs * inputs == 0 {
        return Err(QuantError::NotAMatrix {
            got: weight.dims().to_vec(),
        });
    }
    let values: Vec<f32> = weight
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1()?;
    let is_finite = |values: &[f32]| values.iter().fold(true, |all, value| all & value.is_finite());
    match values.par_chunks(inputs).position_first(|row| !is_finite(row)) {
        Some(row) => Err(QuantError::NotFinite { row }),
        None => Ok((outputs, inputs, values)),
    }
}

/// Largest absolute value.
pub(super) fn absmax(block: &[f32]) -> f32 {
    block.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

/// Hands the elements of a contiguous CPU tensor to `read`.
pub(super) fn with_slice<D: WithDType, R>(tensor: &Tensor, read: impl FnOnce(&[D]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => read(&storage.as_slice::<D>()?[start..end]),
        _ => bail!("expected a contiguous tensor on the CPU"),
    }
}
