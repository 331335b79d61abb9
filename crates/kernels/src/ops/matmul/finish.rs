//! The end of a tile: its sums go to their place in the result, rounded and added to what is to be added to.

use super::operand::{Old, Result};
use super::tile::LANES;
use crate::ops::element::Element;
use candle_core::DType;
use core::arch::x86_64::*;
use std::ops::Range;

/// Writes the sums of a tile, which are row-major in whole vectors, to the rows from `row` on and to `columns`.
///
/// # Safety
/// `result` is valid there, and no one else writes there; the processor has AVX-512F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn write<O: Element>(result: &Result<O>, sums: &[f32], row: usize, columns: Range<usize>) {
    let padded = columns.len().next_multiple_of(LANES);
    for (index, sums) in sums.chunks_exact(padded).enumerate() {
        for (vector, sums) in sums.as_chunks::<LANES>().0.iter().enumerate() {
            let column = columns.start + vector * LANES;
            let mask = mask(columns.end - column);
            let start = (row + index) * result.stride + column;
            // SAFETY: the mask keeps to the columns; the rest is the caller's promise.
            unsafe { put(result, start, mask, _mm512_loadu_ps(sums.as_ptr())) };
        }
    }
}

/// Writes the sums of the lanes in `mask` to the values of the result from `start` on.
///
/// # Safety
/// Requirements of [`write()`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn put<O: Element>(result: &Result<O>, start: usize, mask: __mmask16, sum: __m512) {
    // SAFETY: the caller's promise; masked lanes are neither read nor written.
    unsafe {
        let value = match result.old {
            Old::Nothing => sum,
            Old::Other(other) => _mm512_add_ps(load(other.add(start), mask), sum),
            Old::Itself(alpha) => {
                let product = _mm512_mul_ps(_mm512_set1_ps(alpha), sum);
                _mm512_add_ps(load(result.start.add(start), mask), product)
            }
        };
        store(result.start.add(start), mask, value);
    }
}

/// The first `columns` lanes, of at most sixteen.
pub(super) fn mask(columns: usize) -> __mmask16 {
    if columns >= LANES { !0 } else { (1 << columns) - 1 }
}

/// The values of the lanes in `mask`, widened; zero elsewhere.
///
/// # Safety
/// The lanes can be read from `values`; the processor has AVX-512F, BW and VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn load<T: Element>(values: *const T, mask: __mmask16) -> __m512 {
    // SAFETY: the caller's promise; masked lanes are not read.
    unsafe {
        match T::DTYPE {
            DType::BF16 => {
                let bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, values.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
            DType::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, values.cast())),
            _ => _mm512_maskz_loadu_ps(mask, values.cast()),
        }
    }
}

/// Rounds the lanes in `mask` to `T` and writes them.
///
/// # Safety
/// The lanes can be written to `values`; the processor has AVX-512F, BW and VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn store<T: Element>(values: *mut T, mask: __mmask16, value: __m512) {
    // SAFETY: the caller's promise; masked lanes are not written.
    unsafe {
        match T::DTYPE {
            DType::BF16 => {
                let bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded_to_bf16(value)));
                _mm256_mask_storeu_epi16(values.cast(), mask, bits);
            }
            DType::F16 => {
                let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value);
                _mm256_mask_storeu_epi16(values.cast(), mask, bits);
            }
            _ => _mm512_mask_storeu_ps(values.cast(), mask, value),
        }
    }
}

/// The nearest BF16 value of each lane, in its upper half; ties go to even and a NaN stays one, as in
/// [`Element::narrow`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn rounded_to_bf16(value: __m512) -> __m512i {
    let bits = _mm512_castps_si512(value);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
    _mm512_mask_mov_epi32(rounded, nan, quiet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simd::{Level, level};
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Value that [`write`] makes of one.
    fn written<T: Element>(value: f32) -> T {
        let mut place = T::narrow(0.0);
        let result = Result::store(&raw mut place, 1);
        let mut sums = [0.0; LANES];
        sums[0] = value;
        // SAFETY: the level was checked; one column is written.
        unsafe { write(&result, &sums, 0, 0..1) };
        place
    }

    proptest! {
        #[test]
        fn values_round_as_everywhere(bits: u32) {
            if level() == Level::Avx512 {
                let value = f32::from_bits(bits);
                let (brain, half) = (written::<bf16>(value), written::<f16>(value));
                let (want_brain, want_half) = (<bf16 as Element>::narrow(value), <f16 as Element>::narrow(value));
                prop_assert!(brain == want_brain || (brain.is_nan() && value.is_nan()));
                prop_assert!(half == want_half || (half.is_nan() && value.is_nan()));
            }
        }
    }

    #[test]
    fn only_the_columns_are_touched() {
        if level() < Level::Avx512 {
            return;
        }
        let (mut place, other) = ([9f32; 30], [5f32; 30]);
        let result = Result {
            start: place.as_mut_ptr(),
            stride: 10,
            old: Old::Other(other.as_ptr()),
        };
        // SAFETY: two rows of three columns lie within the values.
        unsafe { write(&result, &[1.0; 2 * LANES], 1, 2..5) };
        let expected: Vec<f32> = (0..30)
            .map(|i| {
                if i >= 10 && (2..5).contains(&(i % 10)) {
                    6.0
                } else {
                    9.0
                }
            })
            .collect();
        assert_eq!(place.to_vec(), expected);
    }
}
