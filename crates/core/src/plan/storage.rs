//! Bytes of the base weights by storage.
//!
//! | storage | bytes of n elements |
//! |---|---|
//! | fp32, bf16, fp16 | 4 n, 2 n, 2 n |
//! | int8 | n codes, 4 for each block of 64 |
//! | nf4 | n / 2 codes, 4 for each block of 64 |
//! | nf4_double | n / 2 codes, 1 for each block of 64, 4 for each 256 blocks |
//!
//! Only the linear layers of the decoder and its experts are quantized; embedding, LM head, norms and biases are bf16 then. Routers
//! are F32 whatever the rest is: a rounded logit chooses another expert.

use crate::architecture::{Architecture, ExpertPart, LinearRole};
use crate::recipe::{BlockConstants, Precision};

/// Elements of a block of quantized weights.
pub const BLOCK: usize = 64;
/// Block constants that share one constant under double quantization.
pub const NESTED_BLOCK: usize = 256;

/// Codes or values, and block constants, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    pub values: u64,
    pub constants: u64,
}

/// Bytes of a linear layer's weight of `elements`.
pub fn linear_bytes(elements: u64, precision: Precision) -> WeightBytes {
    let row = precision.row();
    let blocks = elements.div_ceil(BLOCK as u64);
    WeightBytes {
        values: (elements * row.bits).div_ceil(8),
        constants: match row.constants {
            None => 0,
            Some(BlockConstants::Plain) => 4 * blocks,
            Some(BlockConstants::Quantized) => blocks + 4 * blocks.div_ceil(NESTED_BLOCK as u64),
        },
    }
}

/// Bytes of the whole base model.
pub fn base_bytes(architecture: &Architecture, precision: Precision) -> WeightBytes {
    let count = architecture.parameter_count();
    let dense = (count.embedding + count.lm_head + count.vectors) as u64 * precision.compute_bytes();
    let mut bytes = WeightBytes {
        values: dense,
        constants: 0,
    };
    let mut exact_vectors = 0;
    let mut add = |elements: usize, precision, times: u64| {
        let one = linear_bytes(elements as u64, precision);
        bytes.values += times * one.values;
        bytes.constants += times * one.constants;
    };
    if let Some(module) = architecture.outer_module() {
        add(module.in_features * module.out_features, precision, 1);
    }
    for index in 0..architecture.layers.len() {
        for module in architecture.layer_modules(index) {
            let precision = match module.role {
                LinearRole::Router => Precision::Fp32,
                _ => precision,
            };
            add(module.in_features * module.out_features, precision, 1);
        }
        let Some(experts) = architecture.experts_of(index) else {
            continue;
        };
        let [outputs, inputs] = experts.part_shape(ExpertPart::Down, architecture.hidden_size);
        add(outputs * inputs, precision, 3 * experts.count as u64);
        if experts.router.correction || experts.biases {
            exact_vectors += experts.count as u64 * (4 - precision.compute_bytes());
        }
    }
    bytes.values += exact_vectors;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_constants_are_counted_in_blocks() {
        let bytes = |elements, precision| {
            let one = linear_bytes(elements, precision);
            (one.values, one.constants)
        };
        assert_eq!(bytes(1000, Precision::Fp32), (4000, 0));
        assert_eq!(bytes(1000, Precision::Int8), (1000, 64));
        assert_eq!(bytes(1001, Precision::Nf4), (501, 64));
        assert_eq!(bytes(1 << 20, Precision::Nf4Double), (1 << 19, 16_384 + 4 * 64));
    }
}
