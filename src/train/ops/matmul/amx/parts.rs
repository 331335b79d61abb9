//! Sixteen pairs of values as the unit multiplies them: as BF16, or each as the sum of three BF16 values.

use crate::train::ops::element::Element;
use crate::train::ops::matmul::finish::{self, mask};
use crate::train::ops::matmul::pack::combine;
use crate::train::ops::matmul::tile::{LANES, Line};
use candle_core::DType;
use core::arch::x86_64::*;
use half::bf16;

/// Values of a left operand.
pub trait Operand: Element {
    /// BF16 values that one value is made of.
    const PARTS: usize;
}

impl Operand for bf16 {
    const PARTS: usize = 1;
}

impl Operand for f32 {
    const PARTS: usize = 3;
}

/// `scale` times 32 consecutive values, of which `count` are there and the rest is zero, in pairs of neighbours.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and BF16; `count` values can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub unsafe fn neighbours<T: Element, const PARTS: usize>(
    values: *const T,
    count: usize,
    scale: f32,
) -> [__m512i; PARTS] {
    let mut parts = [_mm512_setzero_si512(); PARTS];
    if PARTS == 1 && T::DTYPE == DType::BF16 && scale == 1.0 {
        let mask = if count >= 2 * LANES { !0 } else { (1u32 << count) - 1 };
        // SAFETY: the caller's promise; masked lanes are not read.
        parts[0] = unsafe { _mm512_maskz_loadu_epi16(mask, values.cast()) };
        return parts;
    }
    // SAFETY: as above.
    let (low, high) = unsafe {
        (
            finish::load(values, mask(count)),
            finish::load(values.wrapping_add(LANES), mask(count.saturating_sub(LANES))),
        )
    };
    let scale = _mm512_set1_ps(scale);
    let (mut low, mut high) = (_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
    for part in &mut parts {
        // SAFETY: both types are 512 bits that may have any value.
        *part = unsafe { core::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        low = _mm512_sub_ps(low, _mm512_castsi512_ps(upper(_mm512_castsi512_si256(*part))));
        high = _mm512_sub_ps(high, _mm512_castsi512_ps(upper(_mm512_extracti64x4_epi64::<1>(*part))));
    }
    parts
}

/// `scale` times the values of two places of the summed dimension, in pairs.
///
/// # Safety
/// As [`neighbours`]; the lanes of the masks can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub unsafe fn interleaved<T: Element, const PARTS: usize>(
    (first, first_mask): (*const T, __mmask16),
    (second, second_mask): (*const T, __mmask16),
    scale: f32,
) -> [__m512i; PARTS] {
    let mut parts = [_mm512_setzero_si512(); PARTS];
    // SAFETY: the caller's promise; masked lanes are not read.
    let (mut low, mut high) = unsafe { (finish::load(first, first_mask), finish::load(second, second_mask)) };
    if PARTS == 1 && T::DTYPE == DType::BF16 && scale == 1.0 {
        parts[0] = combine(_mm512_castps_si512(low), _mm512_castps_si512(high));
        return parts;
    }
    let scale = _mm512_set1_ps(scale);
    (low, high) = (_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
    for part in &mut parts {
        let (low_part, high_part) = (rounded(low), rounded(high));
        *part = combine(low_part, high_part);
        low = _mm512_sub_ps(low, _mm512_castsi512_ps(low_part));
        high = _mm512_sub_ps(high, _mm512_castsi512_ps(high_part));
    }
    parts
}

/// The nearest BF16 value of each lane in its upper half.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
fn rounded(value: __m512) -> __m512i {
    // SAFETY: both types are 256 bits that may have any value.
    upper(unsafe { core::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value)) })
}

/// Sixteen 16-bit values in the upper halves of the lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn upper(values: __m256i) -> __m512i {
    _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(values))
}

/// Writes a line.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn store(line: &mut Line, value: __m512i) {
    // SAFETY: a line is one aligned register.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), value) };
}
