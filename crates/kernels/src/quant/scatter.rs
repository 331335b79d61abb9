//! The inner loop of sparse weights: kept values to their places among zeros.
//!
//! On processors with AVX-512 the values of four groups (eight with VBMI2, in 16 bits) go to their places in one instruction, by a
//! mask that a table has for each byte of positions. Elsewhere they go one by one. Nothing is computed, so that both give the same
//! bits.

use std::any::TypeId;

use half::{bf16, f16};
use peft_tune_core::recipe::{KEPT_OF_GROUP, SPARSE_GROUP};

use super::element::Element;

/// A float that a sparse weight can be stored in.
pub(super) trait StoredFloat: Element {
    /// Widens to the value in F32, exactly.
    fn widen(self) -> f32;
}

impl StoredFloat for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl StoredFloat for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl StoredFloat for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// Writes elements `first..first + into.len()` of the whole weight; the first and the last group may be cut.
#[inline]
pub(super) fn fill<S: StoredFloat, T: Element>(kept: &[S], positions: &[u8], first: usize, into: &mut [T]) {
    let (mut group, mut rest) = (first / SPARSE_GROUP, into);
    let cut = first % SPARSE_GROUP;
    if cut > 0 {
        let (part, tail) = rest.split_at_mut((SPARSE_GROUP - cut).min(rest.len()));
        part_of_group(kept, positions, group, cut, part);
        (group, rest) = (group + 1, tail);
    }
    // A byte of positions is of an even group and the next one.
    if group % 2 == 1 && rest.len() >= SPARSE_GROUP {
        let (part, tail) = rest.split_at_mut(SPARSE_GROUP);
        part_of_group(kept, positions, group, 0, part);
        (group, rest) = (group + 1, tail);
    }
    if group.is_multiple_of(2) {
        let done = in_vectors(&kept[group * KEPT_OF_GROUP..], &positions[group / 2..], rest);
        (group, rest) = (group + done / SPARSE_GROUP, &mut rest[done..]);
    }
    for part in rest.chunks_mut(SPARSE_GROUP) {
        part_of_group(kept, positions, group, 0, part);
        group += 1;
    }
}

/// Expands some elements of one group, from its element `start` on.
#[inline(always)]
fn part_of_group<S: StoredFloat, T: Element>(kept: &[S], positions: &[u8], group: usize, start: usize, part: &mut [T]) {
    let places = positions[group / 2] >> (4 * (group % 2));
    let values = &kept[group * KEPT_OF_GROUP..][..KEPT_OF_GROUP];
    let mut whole = [T::round(0.0); SPARSE_GROUP];
    whole[usize::from(places & 3)] = T::round(values[0].widen());
    whole[usize::from((places >> 2) & 3)] = T::round(values[1].widen());
    part.copy_from_slice(&whole[start..start + part.len()]);
}

/// Writes as many whole vectors as there are, from an even group on, and returns the elements written.
#[inline]
fn in_vectors<S: StoredFloat, T: Element>(kept: &[S], positions: &[u8], into: &mut [T]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if avx512::is_there() {
        // SAFETY: the processor has the features that the functions are compiled for; the types are the ones named.
        unsafe {
            if let (Some(kept), Some(into)) = (is::<S, f32>(kept), is_mut::<T, f32>(into)) {
                return avx512::single(kept, positions, into);
            }
            if let (Some(kept), Some(into)) = (is::<S, bf16>(kept), is_mut::<T, f32>(into)) {
                return avx512::widened(kept, positions, into);
            }
            if let (Some(kept), Some(into)) = (is::<S, f16>(kept), is_mut::<T, f32>(into)) {
                return avx512::half_widened(kept, positions, into);
            }
            if let (Some(kept), Some(into)) = (is::<S, bf16>(kept), is_mut::<T, bf16>(into)) {
                return match avx512::has_vbmi2() {
                    true => avx512::pair_at_once(kept, positions, into),
                    false => avx512::pair(kept, positions, into),
                };
            }
        }
    }
    let _ = (kept, positions, into);
    0
}

/// The slice as one of `B`, where `A` is `B`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn is<A: 'static, B: 'static>(slice: &[A]) -> Option<&[B]> {
    // SAFETY: the types are the same.
    (TypeId::of::<A>() == TypeId::of::<B>())
        .then(|| unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) })
}

/// Casts a slice to elements of type `B`, where `A` is that type; see [`is`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn is_mut<A: 'static, B: 'static>(slice: &mut [A]) -> Option<&mut [B]> {
    let length = slice.len();
    // SAFETY: the types are the same.
    (TypeId::of::<A>() == TypeId::of::<B>())
        .then(|| unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), length) })
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    /// Masks of the eight elements of two groups that are kept, by their byte of positions.
    const MASKS: [u8; 256] = {
        let mut masks = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (low, high) = (byte & 15, byte >> 4);
            masks[byte] = (1 << (low & 3)) | (1 << (low >> 2)) | (16 << (high & 3)) | (16 << (high >> 2));
            byte += 1;
        }
        masks
    };

    /// Elements of a vector of F32.
    const SINGLES: usize = 16;
    /// Elements of a vector of 16 bits.
    const PAIRS: usize = 32;

    /// Whether the processor can run what is in this module, but for [`pair_at_once`].
    #[inline]
    pub(super) fn is_there() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("f16c")
    }

    /// Whether it moves 16 bits at a time.
    #[inline]
    pub(super) fn has_vbmi2() -> bool {
        is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi2")
    }

    /// The mask of sixteen elements.
    #[inline(always)]
    fn mask(positions: &[u8; 2]) -> u16 {
        u16::from_le_bytes(positions.map(|byte| MASKS[usize::from(byte)]))
    }

    #[target_feature(enable = "avx512f,f16c")]
    pub(super) fn single(kept: &[f32], positions: &[u8], into: &mut [f32]) -> usize {
        let (vectors, _) = into.as_chunks_mut::<SINGLES>();
        let (halves, _) = kept.as_chunks::<{ SINGLES / 2 }>();
        let (bytes, _) = positions.as_chunks::<2>();
        for ((vector, half), bytes) in vectors.iter_mut().zip(halves).zip(bytes) {
            // SAFETY: the arrays have eight and sixteen floats.
            unsafe {
                let half = _mm512_castps256_ps512(_mm256_loadu_ps(half.as_ptr()));
                _mm512_storeu_ps(vector.as_mut_ptr(), _mm512_maskz_expand_ps(mask(bytes), half));
            }
        }
        vectors.len() * SINGLES
    }

    #[target_feature(enable = "avx512f,f16c,avx2")]
    pub(super) fn widened(kept: &[bf16], positions: &[u8], into: &mut [f32]) -> usize {
        let (vectors, _) = into.as_chunks_mut::<SINGLES>();
        let (halves, _) = kept.as_chunks::<{ SINGLES / 2 }>();
        let (bytes, _) = positions.as_chunks::<2>();
        for ((vector, half), bytes) in vectors.iter_mut().zip(halves).zip(bytes) {
            // SAFETY: the arrays have eight 16-bit values and sixteen floats.
            unsafe {
                let half = _mm256_cvtepu16_epi32(_mm_loadu_si128(half.as_ptr().cast()));
                let half = _mm512_castsi256_si512(_mm256_slli_epi32::<16>(half));
                let whole = _mm512_maskz_expand_epi32(mask(bytes), half);
                _mm512_storeu_si512(vector.as_mut_ptr().cast(), whole);
            }
        }
        vectors.len() * SINGLES
    }

    #[target_feature(enable = "avx512f,f16c")]
    pub(super) fn half_widened(kept: &[f16], positions: &[u8], into: &mut [f32]) -> usize {
        let (vectors, _) = into.as_chunks_mut::<SINGLES>();
        let (halves, _) = kept.as_chunks::<{ SINGLES / 2 }>();
        let (bytes, _) = positions.as_chunks::<2>();
        for ((vector, half), bytes) in vectors.iter_mut().zip(halves).zip(bytes) {
            // SAFETY: the arrays have eight 16-bit values and sixteen floats.
            unsafe {
                let half = _mm256_cvtph_ps(_mm_loadu_si128(half.as_ptr().cast()));
                let whole = _mm512_maskz_expand_ps(mask(bytes), _mm512_castps256_ps512(half));
                _mm512_storeu_ps(vector.as_mut_ptr(), whole);
            }
        }
        vectors.len() * SINGLES
    }

    #[target_feature(enable = "avx512f,f16c,avx2")]
    pub(super) fn pair(kept: &[bf16], positions: &[u8], into: &mut [bf16]) -> usize {
        let (vectors, _) = into.as_chunks_mut::<SINGLES>();
        let (halves, _) = kept.as_chunks::<{ SINGLES / 2 }>();
        let (bytes, _) = positions.as_chunks::<2>();
        for ((vector, half), bytes) in vectors.iter_mut().zip(halves).zip(bytes) {
            // SAFETY: the arrays have eight and sixteen 16-bit values.
            unsafe {
                let half = _mm256_cvtepu16_epi32(_mm_loadu_si128(half.as_ptr().cast()));
                let whole = _mm512_maskz_expand_epi32(mask(bytes), _mm512_castsi256_si512(half));
                _mm256_storeu_si256(vector.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(whole));
            }
        }
        vectors.len() * SINGLES
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,f16c")]
    pub(super) fn pair_at_once(kept: &[bf16], positions: &[u8], into: &mut [bf16]) -> usize {
        let (vectors, _) = into.as_chunks_mut::<PAIRS>();
        let (halves, _) = kept.as_chunks::<{ PAIRS / 2 }>();
        let (bytes, _) = positions.as_chunks::<4>();
        for ((vector, half), bytes) in vectors.iter_mut().zip(halves).zip(bytes) {
            let mask = u32::from_le_bytes(bytes.map(|byte| MASKS[usize::from(byte)]));
            // SAFETY: the arrays have sixteen and thirty-two 16-bit values.
            unsafe {
                let half = _mm512_castsi256_si512(_mm256_loadu_si256(half.as_ptr().cast()));
                _mm512_storeu_si512(vector.as_mut_ptr().cast(), _mm512_maskz_expand_epi16(mask, half));
            }
        }
        vectors.len() * PAIRS
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// The form that this processor does not take is tested all the same.
        #[test]
        fn both_forms_of_16_bits_give_the_same() {
            if !is_there() || !has_vbmi2() {
                return;
            }
            let places = [0b0100u8, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];
            let kept: Vec<bf16> = (0..64).map(|value| bf16::from_f32(value as f32 - 31.5)).collect();
            let byte = |index: usize| places[index % 6] | (places[(index * 5 + 2) % 6] << 4);
            let positions: Vec<u8> = (0..16).map(byte).collect();
            let (mut one, mut other) = (vec![bf16::ONE; 128], vec![bf16::ZERO; 128]);
            // SAFETY: the processor has both.
            let written = unsafe {
                [
                    pair(&kept, &positions, &mut one),
                    pair_at_once(&kept, &positions, &mut other),
                ]
            };
            assert_eq!((written, one), ([128; 2], other));
        }
    }
}
