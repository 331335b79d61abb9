//! The inner loops: codes of one block to floats.
//!
//! On processors with AVX-512, sixteen 4-bit codes are looked up by one permutation; elsewhere a byte is looked up in a
//! table of 256 pairs.

use super::element::Element;

/// The pairs of values that a byte of two codes stands for, high half first.
pub(super) type PairTable = [[f32; 2]; 256];

/// One divided by 127 as bitsandbytes rounds it.
pub(super) const INT8_STEP: f32 = 7.874_016e-3;

/// Builds the table of pairs for sixteen values.
pub(super) const fn pair_table(values: &[f32; 16]) -> PairTable {
    let mut table = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [values[byte >> 4], values[byte & 15]];
        byte += 1;
    }
    table
}

/// Writes `value[code] * scale` for each code; `into` has two elements for each byte, or one less.
#[inline(always)]
pub(super) fn nf4_block<T: Element>(table: &PairTable, bytes: &[u8], scale: f32, into: &mut [T]) {
    for (pair, byte) in into.chunks_mut(2).zip(bytes) {
        for (element, value) in pair.iter_mut().zip(table[usize::from(*byte)]) {
            *element = T::round(value * scale);
        }
    }
}

/// Writes `(code - 128) * scale / 127` for each code.
#[inline(always)]
pub(super) fn int8_block<T: Element>(codes: &[u8], scale: f32, into: &mut [T]) {
    for (element, code) in into.iter_mut().zip(codes) {
        let code = f32::from(i16::from(*code) - 128);
        *element = T::round(code * scale * INT8_STEP);
    }
}
