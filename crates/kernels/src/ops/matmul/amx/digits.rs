//! F32 values as integers of three digits, which the unit multiplies exactly.
//!
//! All values of a row of the left operand, or of a column of the right one, share a factor by which they become integers below
//! 2^23, the largest of them as large as can be. Such an integer is d0 2^16 + d1 2^8 + d2 with digits of -128 to 127. Of the nine
//! products of two digits those of 2^-24 and less of the largest are left out (d1 d2, d2 d1, d2 d2); the other six belong to three
//! levels, each an exact sum of 32 bits: d0 d0; d0 d1 + d1 d0; d0 d2 + d1 d1 + d2 d0.
//!
//! Of each product some 2^-24 of the product of the largest values of its row and column is lost, with random signs, while multiply-adds
//! lose as much of each partial sum: from sums of some hundreds on digits are closer to the exact result. A value below 2^-24 of
//! the largest in its row counts as zero. A row with a value that is not finite gives results that are not numbers.
//!
//! Sources: Ootomo, Ozaki and Yokota 2024, "DGEMM on Integer Matrix Multiplication Unit", on sums of products of digits.

use super::kernel::{self, Kind, PanelProduct, Sums};
use super::layout::{LEFT_BYTES, MR, right_bytes};
use super::unit::ROW_BYTES;
use crate::ops::element::Element;
use crate::ops::matmul::finish;
use crate::ops::matmul::finish::mask;
use crate::ops::matmul::tile::LANES;
use core::arch::x86_64::*;
pub(super) use peft_tune_core::plan::products::amx::{DIGITS, DIGITS_STEP as STEP};

/// Lines of the factors of a MR micro-panel.
pub(super) const LEFT_FACTORS: usize = MR / LANES;
/// Rows of a NR micro-panel that hold its factors.
pub(super) const RIGHT_FACTORS: usize = 1;

/// The products of each level, the lowest first: (digit of the left operand, of the right). Neighbours share what can be
/// shared, which then lies in the first-level cache; the last product and the next NR micro-panel's first one do, too.
const LEVELS: [&[[usize; 2]]; DIGITS] = [&[[0, 2], [1, 1], [2, 0]], &[[1, 0], [0, 1]], &[[0, 0]]];

/// Steps whose slices of both operands fit into the first-level cache together: the products of all digits run over as many
/// at a time.
const BLOCK: usize = 3;

/// Place of the slice of a digit and step, of `steps` steps: block after block, in each digit after digit.
pub(super) const fn slice(steps: usize, digit: usize, step: usize) -> usize {
    let first = step / BLOCK * BLOCK;
    let rest = steps - first;
    let block = if rest < BLOCK { rest } else { BLOCK };
    first * DIGITS + digit * block + step - first
}

/// Multiplies a piece of `vectors` vectors; the levels get the integer sums of the products of each.
///
/// # Safety
/// The tiles are configured, and the piece is packed in digits.
#[inline]
pub(super) unsafe fn multiply(
    piece: &PanelProduct,
    levels: &mut [Sums; DIGITS],
    vectors: usize,
    mut between: impl FnMut(),
) {
    for first in (0..piece.steps).step_by(BLOCK) {
        for (products, sums) in LEVELS.iter().zip(levels.iter_mut()) {
            // SAFETY: the caller's promise; factors lie before the digits.
            unsafe {
                let sums = sums.start();
                kernel::begin(vectors, (first > 0).then_some(sums.cast_const()));
                for digits in *products {
                    let slices = digits_of(piece, first, vectors, *digits);
                    kernel::add(&slices, Kind::Digits, vectors, &mut between);
                }
                kernel::end(vectors, sums);
            }
        }
    }
}

/// The slices of one digit of the left operand and of one of the right, for the block that begins with the step `first`.
unsafe fn digits_of(piece: &PanelProduct, first: usize, vectors: usize, digits: [usize; 2]) -> PanelProduct {
    let [left, right] = digits.map(|digit| slice(piece.steps, digit, first));
    let left = LEFT_FACTORS * ROW_BYTES + left * LEFT_BYTES;
    let right = RIGHT_FACTORS * vectors * ROW_BYTES + right * right_bytes(vectors);
    let mut block = *piece;
    block.steps = BLOCK.min(piece.steps - first);
    // SAFETY: both operands are laid out so.
    unsafe {
        block.left.upper = block.left.upper.add(left);
        block.left.lower = block.left.lower.add(left);
        block.right = block.right.byte_add(right);
    }
    block
}

/// The sum of the levels of sixteen neighbours in a row, times the factors of the row and of the columns.
///
/// # Safety
/// Levels and columns are aligned vectors.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn sum(levels: [*const f32; DIGITS], row: f32, columns: *const f32) -> __m512 {
    // SAFETY: the caller's promise.
    let level = |index: usize| _mm512_cvtepi32_ps(unsafe { _mm512_load_si512(levels[index].cast()) });
    let sum = _mm512_fmadd_ps(level(1), _mm512_set1_ps(1.0 / 256.0), level(2));
    let sum = _mm512_fmadd_ps(level(0), _mm512_set1_ps(1.0 / 65536.0), sum);
    let sum = _mm512_mul_ps(sum, _mm512_set1_ps(row));
    // SAFETY: as above.
    _mm512_mul_ps(sum, unsafe { _mm512_load_ps(columns) })
}

/// The factors that make integers of values, and values of the products of highest digits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub up: __m512,
    pub down: __m512,
}

/// The largest integer, a little below what three digits of at most 127 make.
const MOST: f32 = 8_355_700.0;
/// Rows of smaller values than these count as zero: the factors would leave the range of exponents.
const LEAST: f32 = f32::from_bits(31 << 23);

/// Factors for values whose largest magnitudes have these bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn factors(largest: __m512i) -> Factors {
    let is_finite = _mm512_cmplt_epu32_mask(largest, _mm512_set1_epi32(f32::INFINITY.to_bits() as i32));
    let largest = _mm512_max_ps(_mm512_castsi512_ps(largest), _mm512_set1_ps(LEAST));
    let down = _mm512_mul_ps(largest, _mm512_set1_ps(65536.0 / MOST));
    Factors {
        up: _mm512_div_ps(_mm512_set1_ps(MOST), largest),
        down: _mm512_mask_mov_ps(_mm512_set1_ps(f32::NAN), is_finite, down),
    }
}

/// The larger magnitude of each lane, as bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn larger(largest: __m512i, values: __m512) -> __m512i {
    let magnitude = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(i32::MAX));
    _mm512_max_epu32(largest, magnitude)
}

/// The largest magnitude of consecutive values, as bits.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn largest<T: Element>(values: &[T]) -> u32 {
    let mut most = [_mm512_setzero_si512(); 4];
    for start in (0..values.len()).step_by(4 * LANES) {
        for (index, most) in most.iter_mut().enumerate() {
            let start = start + index * LANES;
            let mask = mask(values.len().saturating_sub(start));
            // SAFETY: the mask keeps to the values.
            *most = larger(*most, unsafe {
                finish::load(values.as_ptr().wrapping_add(start), mask)
            });
        }
    }
    let [a, b, c, d] = most;
    _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d)))
}

/// The digits, plus 128, in the three lower bytes of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn integers(values: __m512, up: __m512) -> __m512i {
    _mm512_cvtps_epi32(_mm512_fmadd_ps(values, up, _mm512_set1_ps(0x80_8080 as f32)))
}

/// Bytes less 128.
#[inline]
#[target_feature(enable = "avx512f")]
fn signed(bytes: __m512i) -> __m512i {
    _mm512_xor_si512(bytes, _mm512_set1_epi32(0x8080_8080_u32 as i32))
}

/// 64 consecutive values, of which `count` are there and the rest is zero: a line of each digit, the highest first.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ, VL and VBMI; `count` values can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) unsafe fn neighbours<T: Element>(values: *const T, count: usize, up: __m512) -> [__m512i; DIGITS] {
    let quarter = |index: usize| {
        let start = index * LANES;
        // SAFETY: the caller's promise; masked lanes are not read.
        integers(
            unsafe { finish::load(values.wrapping_add(start), mask(count.saturating_sub(start))) },
            up,
        )
    };
    let [a, b, c, d] = [quarter(0), quarter(1), quarter(2), quarter(3)];
    // SAFETY: the arrays are as large as a vector.
    let (upper, lowest) = unsafe {
        (
            _mm512_loadu_si512(UPPER.as_ptr().cast()),
            _mm512_loadu_si512(LOWEST.as_ptr().cast()),
        )
    };
    let (first, second) = (
        _mm512_permutex2var_epi8(a, upper, b),
        _mm512_permutex2var_epi8(c, upper, d),
    );
    let (first_lowest, second_lowest) = (
        _mm512_permutex2var_epi8(a, lowest, b),
        _mm512_permutex2var_epi8(c, lowest, d),
    );
    [
        signed(_mm512_shuffle_i64x2::<0x44>(first, second)),
        signed(_mm512_shuffle_i64x2::<0xEE>(first, second)),
        signed(_mm512_shuffle_i64x2::<0x44>(first_lowest, second_lowest)),
    ]
}

/// Indices into two vectors of integers: the third bytes of all, then the second ones.
static UPPER: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut index = 0;
    while index < 32 {
        bytes[index] = 4 * index as u8 + 2;
        bytes[32 + index] = 4 * index as u8 + 1;
        index += 1;
    }
    bytes
};

/// Indices into two vectors of integers: the first bytes of all.
static LOWEST: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut index = 0;
    while index < 32 {
        bytes[index] = 4 * index as u8;
        index += 1;
    }
    bytes
};

/// The values of four places of the summed dimension: for each digit, the highest first, its fours.
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL; the lanes of the masks can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn interleaved<T: Element>(places: [(*const T, __mmask16); 4], up: __m512) -> [__m512i; DIGITS] {
    // SAFETY: the caller's promise; masked lanes are not read.
    let at = |(values, mask)| integers(unsafe { finish::load(values, mask) }, up);
    let [a, b, c, d] = [at(places[0]), at(places[1]), at(places[2]), at(places[3])];
    let odd = _mm512_set1_epi32(0x00FF_00FF);
    let half = _mm512_set1_epi32(0x0000_FFFF);
    // The first and third bytes of two integers in turn; their second bytes.
    let outer = |a, b| select(odd, a, _mm512_slli_epi32::<8>(b));
    let inner = |a, b| select(odd, _mm512_srli_epi32::<8>(a), b);
    let (first, second) = (outer(a, b), outer(c, d));
    [
        signed(select(half, _mm512_srli_epi32::<16>(first), second)),
        signed(select(half, inner(a, b), _mm512_slli_epi32::<16>(inner(c, d)))),
        signed(select(half, first, _mm512_slli_epi32::<16>(second))),
    ]
}

/// The bits of `yes` where those of the mask are set, else those of `no`.
#[inline]
#[target_feature(enable = "avx512f")]
fn select(mask: __m512i, yes: __m512i, no: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xCA>(mask, yes, no)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::matmul::amx::is_available;
    use proptest::prelude::*;

    /// The digits of each value, the highest first, and what a product of highest digits is worth.
    fn digits(values: &[f32]) -> (Vec<[i8; DIGITS]>, f32) {
        // SAFETY: callers have the unit.
        unsafe { digits_and_factor(values) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
    unsafe fn digits_and_factor(values: &[f32]) -> (Vec<[i8; DIGITS]>, f32) {
        // SAFETY: the processor has what is asked for; the values are there, and all types have 64 bytes.
        unsafe {
            let factors = factors(_mm512_set1_epi32(largest(values) as i32));
            let lines = neighbours(values.as_ptr(), values.len(), factors.up);
            let bytes = lines.map(|line| core::mem::transmute::<__m512i, [i8; STEP]>(line));
            // Four at a time across must give the same.
            for (index, fours) in values.as_chunks::<4>().0.iter().enumerate() {
                let places = [0, 1, 2, 3].map(|next| (fours.as_ptr().add(next), 1));
                let across = interleaved(places, factors.up).map(|line| _mm512_cvtsi512_si32(line).to_le_bytes());
                for (across, along) in across.iter().zip(&bytes) {
                    let along = along[4 * index..][..4].iter().map(|digit| *digit as u8);
                    assert!(along.eq(across.iter().copied()));
                }
            }
            let digits = (0..values.len()).map(|index| [0, 1, 2].map(|digit: usize| bytes[digit][index]));
            (digits.collect(), _mm512_cvtss_f32(factors.down))
        }
    }

    proptest! {
        #[test]
        fn digits_hold_each_value_to_the_last_bit_of_the_largest(
            values in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO, 1..=STEP),
            exponent in -60i32..60,
        ) {
            if !is_available() {
                return Ok(());
            }
            // Values of one exponent and less, wherever it lies.
            let values: Vec<f32> = values.iter().map(|value| {
                f32::from_bits(value.to_bits() & 0x80FF_FFFF | 0x3F00_0000) * 2f32.powi(exponent - (value.to_bits() >> 24 & 31) as i32)
            }).collect();
            let largest = values.iter().fold(0f64, |most, value| most.max(f64::from(value.abs())));
            let (digits, factor) = digits(&values);
            for (value, [high, middle, low]) in values.iter().zip(digits) {
                let integer = f64::from(high) + f64::from(middle) / 256.0 + f64::from(low) / 65536.0;
                // What a product of highest digits is worth is shared by both operands: here all of it is one's.
                let error = (integer * f64::from(factor) - f64::from(*value)).abs();
                prop_assert!(error <= largest / 4_194_304.0, "{value}: {error} of {largest}");
            }
        }

        #[test]
        fn any_bits_have_digits(bits in prop::collection::vec(any::<u32>(), 1..=STEP)) {
            if !is_available() {
                return Ok(());
            }
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let (_, factor) = digits(&values);
            prop_assert_eq!(factor.is_nan(), values.iter().any(|value| !value.is_finite()));
        }
    }

    #[test]
    fn zeros_and_tiny_values_have_zeros_for_digits() {
        if is_available() {
            let (zeros, factor) = digits(&[0.0, -0.0, 1e-38, f32::from_bits(1)]);
            assert_eq!(zeros, [[0; DIGITS]; 4]);
            assert!(factor.is_finite());
        }
    }
}
