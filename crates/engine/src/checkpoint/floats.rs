//! Floats as files hold them, converted to the dtype in which weights are held.

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::tensor::Dtype;

/// Elements that one task converts at a time.
const CHUNK: usize = 1 << 16;

/// Float types that weights are published in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    pub(super) fn from_dtype(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// A dtype that weights are held in.
pub(super) trait Held: Copy + Send + Sync {
    const ZERO: Self;
    fn from_stored(value: f32) -> Self;
    fn is_finite(self) -> bool;
}

impl Held for f32 {
    const ZERO: Self = 0.0;
    fn from_stored(value: f32) -> Self {
        value
    }
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Held for bf16 {
    const ZERO: Self = bf16::ZERO;
    fn from_stored(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn is_finite(self) -> bool {
        bf16::is_finite(self)
    }
}

impl Held for f16 {
    const ZERO: Self = f16::ZERO;
    fn from_stored(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn is_finite(self) -> bool {
        f16::is_finite(self)
    }
}

/// Converts little-endian `bytes`; the error is the index of the first element that is not finite.
pub(super) fn converted<H: Held>(stored: Float, bytes: &[u8]) -> Result<Vec<H>, usize> {
    match stored {
        Float::F32 => widened(bytes, |four: &[u8; 4]| f32::from_le_bytes(*four)),
        Float::F16 => widened(bytes, |two: &[u8; 2]| f16::from_le_bytes(*two).to_f32()),
        Float::Bf16 => widened(bytes, |two: &[u8; 2]| bf16::from_le_bytes(*two).to_f32()),
    }
}

fn widened<H: Held, const N: usize>(bytes: &[u8], widen: impl Fn(&[u8; N]) -> f32 + Sync) -> Result<Vec<H>, usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    let mut values = vec![H::ZERO; elements.len()];
    let parts = values.par_chunks_mut(CHUNK).zip(elements.par_chunks(CHUNK));
    parts.enumerate().try_for_each(|(part, (values, elements))| {
        let mut finite = true;
        for (value, element) in values.iter_mut().zip(elements) {
            *value = H::from_stored(widen(element));
            finite &= value.is_finite();
        }
        if finite {
            return Ok(());
        }
        // The loop above has no branch, so that it runs on vectors; the place is looked up only where it is needed.
        let place = values.iter().position(|value| !value.is_finite());
        Err(part * CHUNK + place.unwrap_or_default())
    })?;
    Ok(values)
}
