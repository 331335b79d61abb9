//! The numbers that codes stand for.

use std::sync::LazyLock;

use float8::F8E4M3;
use safetensors::Dtype;

/// FP4 E2M1 (OCP Microscaling Formats 1.0, section 5.3.3): the sign is bit 3.
pub(super) const FP4: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// FP8 E4M3 without infinities: all but two of the codes are finite.
pub(super) fn float8(code: u8) -> f32 {
    static VALUES: LazyLock<[f32; 256]> =
        LazyLock::new(|| std::array::from_fn(|code| F8E4M3::from_bits(code as u8).to_f32()));
    VALUES[usize::from(code)]
}

/// 2^(code - 127), the scale of a block of MXFP4 (E8M0); 255 is none.
pub(super) fn power_of_two(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        _ => (f32::from(code) - 127.0).exp2(),
    }
}

/// Whether numbers of this type stand for others.
pub(super) fn is_coded(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::I8)
}

/// Code `index` of a row of words that hold `bits` (2, 4 or 8) each, the low bits first.
pub(super) fn code_at(words: &[u32], index: usize, bits: usize) -> u32 {
    let in_word = 32 / bits;
    let mask = u32::MAX >> (32 - bits);
    words[index / in_word] >> (index % in_word * bits) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float8_has_its_limits_where_the_format_says() {
        // OCP 8-bit floating point specification, table 1.
        let codes = [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x08, 2f32.powi(-6)),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ];
        for (code, value) in codes {
            assert_eq!(float8(code), value, "{code:#x}");
        }
        assert!(float8(0x7f).is_nan() && float8(0xff).is_nan());
        assert_eq!((0..=255).filter(|code| float8(*code).is_finite()).count(), 254);
    }

    #[test]
    fn blocks_scale_by_powers_of_two() {
        assert_eq!(
            [power_of_two(127), power_of_two(130), power_of_two(0)],
            [1.0, 8.0, 2f32.powi(-127)]
        );
        assert!(power_of_two(255).is_nan());
    }

    #[test]
    fn codes_lie_in_words_from_the_low_end() {
        let words = [0x8765_4321, 0x0fed_cba9];
        let codes: Vec<u32> = (0..16).map(|index| code_at(&words, index, 4)).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0]);
        assert_eq!(code_at(&words, 5, 8), 0xcb);
    }
}
