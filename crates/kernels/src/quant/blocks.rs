//! Blocks of the quantized formats: reading a weight as F32 rows, and the constants of blocks.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use candle_core::{DType, Device, Result, Storage, Tensor, WithDType, bail};

use super::error::QuantError;
use crate::thread_pool;

/// Elements that one thread quantizes or widens at a time, a multiple of every block size.
pub(super) const CHUNK: usize = 16 * 1024;

/// A tensor of so many elements that holds one.
pub(super) fn on_paper(elements: usize, dtype: DType) -> Result<Tensor> {
    Tensor::zeros((), dtype, &Device::Cpu)?.broadcast_as(elements)
}

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
    match row_that_is_not_finite(&values, inputs) {
        Some(row) => Err(QuantError::NotFinite { row }),
        None => Ok((outputs, inputs, values)),
    }
}

/// The first row of `inputs` elements that has a value that is not finite.
fn row_that_is_not_finite(values: &[f32], inputs: usize) -> Option<usize> {
    let is_finite = |values: &[f32]| values.iter().fold(true, |all, value| all & value.is_finite());
    let (rows, first) = (values.len() / inputs, AtomicUsize::new(usize::MAX));
    let task = (CHUNK / inputs).max(1);
    thread_pool::for_each(rows.div_ceil(task), |index| {
        let start = index * task;
        let end = rows.min(start + task);
        let mut rows = values[start * inputs..end * inputs].chunks_exact(inputs);
        if let Some(row) = rows.position(|row| !is_finite(row)) {
            first.fetch_min(start + row, Relaxed);
        }
    });
    Some(first.into_inner()).filter(|row| *row < rows)
}

/// The constants of `blocks` whose elements are not-a-number, whatever their codes are.
pub(super) fn not_a_number(blocks: usize, device: &Device) -> Result<Tensor> {
    Tensor::full(f32::NAN, blocks, device)
}

/// Largest absolute value; in lanes, since one maximum after the other would wait for each.
pub(super) fn absmax(block: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut lanes = [0f32; LANES];
    for chunk in chunks {
        for (largest, value) in lanes.iter_mut().zip(chunk) {
            *largest = largest.max(value.abs());
        }
    }
    lanes
        .iter()
        .chain(rest)
        .fold(0.0, |largest, value| largest.max(value.abs()))
}

/// Hands the elements of a contiguous CPU tensor to `read`.
pub(super) fn with_slice<D: WithDType, R>(tensor: &Tensor, read: impl FnOnce(&[D]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => read(&storage.as_slice::<D>()?[start..end]),
        _ => bail!("expected a contiguous tensor on the CPU"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{QuantError, Quantized};
    use super::*;

    /// Checks that rows which are replaced have the bits of the weight that has them, and that a value that is not finite shows.
    pub(in super::super) fn assert_rows_are_replaced<Q: Quantized>(
        quantize: impl Fn(&Tensor) -> Q,
        replace: impl Fn(&Q, usize, &Tensor) -> std::result::Result<(), QuantError>,
    ) {
        let values = |codes: &Q| {
            codes
                .dequantize_rows(0..150, DType::F32)
                .unwrap()
                .to_vec2::<f32>()
                .unwrap()
        };
        for inputs in [64, 30] {
            let random = || Tensor::rand(-1f32, 1.0, (150, inputs), &Device::Cpu).unwrap();
            let (before, after) = (random(), random());
            let (codes, expected) = (quantize(&before), values(&quantize(&after)));
            for (start, count) in [(64, 64), (0, 64), (128, 22)] {
                replace(&codes, start, &after.narrow(0, start, count).unwrap()).unwrap();
            }
            assert_eq!(values(&codes), expected);
            let mut one = vec![0.5f32; 64 * inputs];
            one[inputs + 1] = f32::NAN;
            let rows = Tensor::from_vec(one, (64, inputs), &Device::Cpu).unwrap();
            replace(&codes, 64, &rows).unwrap();
            let found = values(&codes);
            assert!(found[65].iter().all(|value| value.is_nan()));
            assert_eq!(found[..64], expected[..64]);
            assert_eq!(found[128..], expected[128..]);
            assert!(replace(&codes, 128, &rows).is_err());
        }
    }
}
