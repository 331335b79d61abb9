//! The inner loops: codes of one block to floats.
//!
//! On processors with AVX-512, sixteen codes are widened at a time (a 4-bit code selects a lane of the register that
//! holds the sixteen values). Elsewhere a byte selects a pair from a table of 256. Both do the same arithmetic in the same
//! order, so that their results are equal to the bit.

use super::element::Element;

/// The pairs of values that a byte of two codes stands for, high half first.
pub(super) type PairTable = [[f32; 2]; 256];

/// One divided by 127 as bitsandbytes rounds it.
pub(super) const INT8_STEP: f32 = 7.874_016e-3;

/// Sixteen values and the pairs that they make.
pub(super) struct Nf4Table {
    pub values: [f32; 16],
    pub pairs: PairTable,
}

impl Nf4Table {
    /// The table of sixteen values.
    pub(super) const fn new(values: [f32; 16]) -> Self {
        let mut pairs = [[0.0; 2]; 256];
        let mut byte = 0;
        while byte < 256 {
            pairs[byte] = [values[byte >> 4], values[byte & 15]];
            byte += 1;
        }
        Self { values, pairs }
    }
}

/// Writes `value[code] * scale` for each code; `into` has two elements for each byte, or one less.
#[inline]
pub(super) fn nf4_block<T: Element>(table: &Nf4Table, bytes: &[u8], scale: f32, into: &mut [T]) {
    #[cfg(target_arch = "x86_64")]
    if avx512::is_there() {
        // SAFETY: the processor has the features that the function is compiled for.
        return unsafe { avx512::nf4_block(table, bytes, scale, into) };
    }
    nf4_block_by_pairs(table, bytes, scale, into);
}

/// The sixteen values of NF4 in 127ths, rounded: each is off by 0.0037 of a block's largest value at most.
const NF4_INT8: [i8; 16] = [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127];

/// The pairs of them that a byte of two codes stands for, high half first.
const NF4_INT8_PAIRS: [[i8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [NF4_INT8[byte >> 4], NF4_INT8[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Writes the value of each 4-bit code in 127ths; `into` has two elements for each byte, or one less.
#[inline]
pub(super) fn nf4_int8(bytes: &[u8], into: &mut [i8]) {
    #[cfg(target_arch = "x86_64")]
    if avx512::is_there() {
        // SAFETY: the processor has the features that the function is compiled for.
        return unsafe { avx512::nf4_int8(bytes, into) };
    }
    nf4_int8_by_pairs(bytes, into);
}

#[inline(always)]
fn nf4_int8_by_pairs(bytes: &[u8], into: &mut [i8]) {
    let (pairs, last) = into.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        *pair = NF4_INT8_PAIRS[usize::from(*byte)];
    }
    if let ([element], Some(byte)) = (last, bytes.last()) {
        *element = NF4_INT8_PAIRS[usize::from(*byte)][0];
    }
}

/// Writes `(code - 128) * scale / 127` for each code.
#[inline]
pub(super) fn int8_block<T: Element>(codes: &[u8], scale: f32, into: &mut [T]) {
    #[cfg(target_arch = "x86_64")]
    if avx512::is_there() {
        // SAFETY: the processor has the features that the function is compiled for.
        return unsafe { avx512::int8_block(codes, scale, into) };
    }
    int8_block_one_by_one(codes, scale, into);
}

#[inline(always)]
fn nf4_block_by_pairs<T: Element>(table: &Nf4Table, bytes: &[u8], scale: f32, into: &mut [T]) {
    let (pairs, last) = into.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        let [high, low] = table.pairs[usize::from(*byte)];
        *pair = [T::round(high * scale), T::round(low * scale)];
    }
    if let ([element], Some(byte)) = (last, bytes.last()) {
        *element = T::round(table.pairs[usize::from(*byte)][0] * scale);
    }
}

#[inline(always)]
fn int8_block_one_by_one<T: Element>(codes: &[u8], scale: f32, into: &mut [T]) {
    for (element, code) in into.iter_mut().zip(codes) {
        let code = f32::from(i16::from(*code) - 128);
        *element = T::round(code * scale * INT8_STEP);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use candle_core::DType;

    use super::{Element, INT8_STEP, NF4_INT8, Nf4Table, int8_block_one_by_one, nf4_block_by_pairs, nf4_int8_by_pairs};

    /// Whether the processor can run what is in this module.
    #[inline]
    pub(super) fn is_there() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn nf4_block<T: Element>(table: &Nf4Table, bytes: &[u8], scale: f32, into: &mut [T]) {
        let (groups, rest) = into.as_chunks_mut::<32>();
        let (sixteens, _) = bytes.as_chunks::<16>();
        // SAFETY: the array has sixteen floats.
        let values = unsafe { _mm512_loadu_ps(table.values.as_ptr()) };
        let (factor, mask) = (_mm512_set1_ps(scale), _mm_set1_epi8(15));
        for (group, codes) in groups.iter_mut().zip(sixteens) {
            // SAFETY: the array has sixteen bytes.
            let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
            let high = _mm_and_si128(_mm_srli_epi16::<4>(codes), mask);
            let low = _mm_and_si128(codes, mask);
            let (first, second) = group.split_at_mut(16);
            for (part, codes) in [
                (first, _mm_unpacklo_epi8(high, low)),
                (second, _mm_unpackhi_epi8(high, low)),
            ] {
                let widened = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), values);
                store(_mm512_mul_ps(widened, factor), part);
            }
        }
        let (rest, bytes) = match (
            rest.split_at_mut_checked(16),
            bytes[groups.len() * 16..].split_first_chunk::<8>(),
        ) {
            (Some((part, rest)), Some((codes, bytes))) => {
                // SAFETY: the array has eight bytes.
                let codes = unsafe { _mm_loadl_epi64(codes.as_ptr().cast()) };
                let high = _mm_and_si128(_mm_srli_epi16::<4>(codes), mask);
                let codes = _mm_unpacklo_epi8(high, _mm_and_si128(codes, mask));
                let widened = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), values);
                store(_mm512_mul_ps(widened, factor), part);
                (rest, bytes)
            }
            _ => return nf4_block_by_pairs(table, &bytes[groups.len() * 16..], scale, rest),
        };
        nf4_block_by_pairs(table, bytes, scale, rest);
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn nf4_int8(bytes: &[u8], into: &mut [i8]) {
        let (groups, rest) = into.as_chunks_mut::<64>();
        let (halves, _) = bytes.as_chunks::<32>();
        // SAFETY: the array has sixteen bytes.
        let values = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(NF4_INT8.as_ptr().cast()) });
        let mask = _mm512_set1_epi16(0x0f0f);
        for (group, codes) in groups.iter_mut().zip(halves) {
            // SAFETY: the array has 32 bytes.
            let codes = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) });
            // The high half of a byte comes first.
            let codes = _mm512_or_si512(_mm512_srli_epi16::<4>(codes), _mm512_slli_epi16::<8>(codes));
            let values = _mm512_shuffle_epi8(values, _mm512_and_si512(codes, mask));
            // SAFETY: the array has 64 elements.
            unsafe { _mm512_storeu_si512(group.as_mut_ptr().cast(), values) };
        }
        nf4_int8_by_pairs(&bytes[groups.len() * 32..], rest);
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn int8_block<T: Element>(codes: &[u8], scale: f32, into: &mut [T]) {
        let (groups, rest) = into.as_chunks_mut::<16>();
        let (sixteens, _) = codes.as_chunks::<16>();
        let (factor, step, bias) = (_mm512_set1_ps(scale), _mm512_set1_ps(INT8_STEP), _mm512_set1_epi32(128));
        for (group, codes) in groups.iter_mut().zip(sixteens) {
            // SAFETY: the array has sixteen bytes.
            let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
            let codes = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(codes), bias));
            store(_mm512_mul_ps(_mm512_mul_ps(codes, factor), step), group);
        }
        let done = groups.len() * 16;
        int8_block_one_by_one(&codes[done..], scale, rest);
    }

    /// Rounds sixteen floats into the sixteen elements of `into`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn store<T: Element>(values: __m512, into: &mut [T]) {
        assert_eq!(into.len(), 16, "a register fills sixteen elements");
        let into = into.as_mut_ptr();
        match T::DTYPE {
            // SAFETY: `into` has sixteen F32.
            DType::F32 => unsafe { _mm512_storeu_ps(into.cast(), values) },
            DType::BF16 => {
                // Round to nearest even as `Element::round` does; the BF16 instruction would flush denormals.
                let bits = _mm512_castps_si512(values);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
                // SAFETY: `into` has sixteen BF16.
                unsafe { _mm256_storeu_si256(into.cast(), halves) }
            }
            DType::F16 => {
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
                // SAFETY: `into` has sixteen F16.
                unsafe { _mm256_storeu_si256(into.cast(), halves) }
            }
            _ => unreachable!("an element is F32, BF16 or F16"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::nf4_values::TABLE;
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Runs both forms of both loops on the same codes; the results are bits.
    fn forms<T: Element + Default>(codes: &[u8], elements: usize, scale: f32, bits: fn(T) -> u32) -> [Vec<u32>; 4] {
        let run = |widen: &dyn Fn(&mut [T])| {
            let mut into = vec![T::default(); elements];
            widen(&mut into);
            into.into_iter().map(bits).collect()
        };
        let nf4 = &codes[..elements.div_ceil(2)];
        [
            run(&|into| nf4_block(&TABLE, nf4, scale, into)),
            run(&|into| nf4_block_by_pairs(&TABLE, nf4, scale, into)),
            run(&|into| int8_block(codes, scale, into)),
            run(&|into| int8_block_one_by_one(codes, scale, into)),
        ]
    }

    #[test]
    fn values_of_nf4_are_the_nearest_127ths() {
        for (value, code) in TABLE.values.iter().zip(NF4_INT8) {
            assert_eq!((127.0 * value).round_ties_even(), f32::from(code));
        }
    }

    proptest! {
        #[test]
        fn both_forms_give_the_same_127ths(codes in prop::collection::vec(any::<u8>(), 1..150), odd: bool) {
            let elements = 2 * codes.len() - usize::from(odd);
            let (mut fast, mut plain) = (vec![0; elements], vec![0; elements]);
            nf4_int8(&codes, &mut fast);
            nf4_int8_by_pairs(&codes, &mut plain);
            prop_assert_eq!(fast, plain);
        }

        #[test]
        fn both_forms_give_the_same_bits(
            codes in prop::collection::vec(any::<u8>(), 1..150),
            scale in prop_oneof![-4f32..4.0, -1e-38f32..1e-38],
        ) {
            for [nf4, nf4_plain, int8, int8_plain] in [
                forms::<f32>(&codes, codes.len(), scale, f32::to_bits),
                forms::<bf16>(&codes, codes.len(), scale, |value| value.to_bits().into()),
                forms::<f16>(&codes, codes.len(), scale, |value| value.to_bits().into()),
            ] {
                prop_assert_eq!(nf4, nf4_plain);
                prop_assert_eq!(int8, int8_plain);
            }
        }
    }
}
