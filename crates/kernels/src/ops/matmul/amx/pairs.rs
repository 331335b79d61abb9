//! Sixteen pairs of BF16 values as the unit multiplies them.

use crate::ops::element::Element;
use crate::ops::matmul::finish;
use crate::ops::matmul::finish::mask;
use crate::ops::matmul::pack::combine;
use crate::ops::matmul::tile::LANES;
use candle_core::DType;
use core::arch::x86_64::*;
pub(super) use peft_tune_core::plan::products::amx::PAIRS_STEP as STEP;

/// `scale` times 32 consecutive values, of which `count` are there and the rest is zero, in pairs of neighbours.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and BF16; `count` values can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn neighbours<T: Element>(values: *const T, count: usize, scale: f32) -> __m512i {
    if T::DTYPE == DType::BF16 && scale == 1.0 {
        let mask = if count >= STEP { !0 } else { (1u32 << count) - 1 };
        // SAFETY: the caller's promise; masked lanes are not read.
        return unsafe { _mm512_maskz_loadu_epi16(mask, values.cast()) };
    }
    // SAFETY: as above.
    let (low, high) = unsafe {
        (
            finish::load(values, mask(count)),
            finish::load(values.wrapping_add(LANES), mask(count.saturating_sub(LANES))),
        )
    };
    let scale = _mm512_set1_ps(scale);
    let pairs = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale));
    // SAFETY: both types are 512 bits that may have any value.
    unsafe { core::mem::transmute::<__m512bh, __m512i>(pairs) }
}

/// `scale` times the values of two places of the summed dimension, in pairs.
///
/// # Safety
/// Requirements of [`neighbours`]; the lanes of the masks can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn interleaved<T: Element>(
    (first, first_mask): (*const T, __mmask16),
    (second, second_mask): (*const T, __mmask16),
    scale: f32,
) -> __m512i {
    // SAFETY: the caller's promise; masked lanes are not read.
    let (low, high) = unsafe { (finish::load(first, first_mask), finish::load(second, second_mask)) };
    if T::DTYPE == DType::BF16 && scale == 1.0 {
        return combine(_mm512_castps_si512(low), _mm512_castps_si512(high));
    }
    let scale = _mm512_set1_ps(scale);
    combine(rounded(_mm512_mul_ps(low, scale)), rounded(_mm512_mul_ps(high, scale)))
}

/// The nearest BF16 value of each lane in its upper half.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
fn rounded(value: __m512) -> __m512i {
    // SAFETY: both types are 256 bits that may have any value.
    let halves = unsafe { core::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value)) };
    _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))
}
