//! [`WeightForm`]: how the frozen weights of linear layers are stored.

use serde::Serialize;

use super::behaviour::Number;

/// How the frozen weights of linear layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightForm {
    /// Numbers that are not quantized.
    Numbers,
    /// bitsandbytes' 8 bits.
    Int8,
    /// 4 bits, a constant in F32 for each 64.
    Nf4,
    /// 4 bits, with constants of one byte for each 64.
    Nf4Double,
    /// 4 bits in groups of 128.
    Gptq4,
    /// 8 bits in groups of 128.
    Gptq8,
}

impl WeightForm {
    /// Bytes of codes and of constants for so many weights.
    pub(super) fn bytes(self, elements: u64, number: Number) -> [u64; 2] {
        match self {
            Self::Numbers => [elements * number.bytes(), 0],
            Self::Int8 => [elements, elements / 4096 * 4],
            Self::Nf4 => [elements / 2, elements / 64 * 4],
            Self::Nf4Double => [elements / 2, elements / 64 + elements / 64 / 256 * 4],
            Self::Gptq4 => [elements / 2, elements / 128 * 5 / 2],
            Self::Gptq8 => [elements, elements / 128 * 3],
        }
    }

    /// Whether weights are codes.
    pub fn is_quantized(self) -> bool {
        self != Self::Numbers
    }

    pub(super) fn is_bitsandbytes(self) -> bool {
        matches!(self, Self::Int8 | Self::Nf4 | Self::Nf4Double)
    }
}
