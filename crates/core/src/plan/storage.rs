//! Bytes of the base weights by storage.
//!
//! | storage | bytes of n elements |
//! |---|---|
//! | fp32, bf16, fp16 | 4 n, 2 n, 2 n |
//! | int8 | n codes, 4 for each block of 64 |
//! | nf4 | n / 2 codes, 4 for each block of 64 |
//! | nf4_double | n / 2 codes, 1 for each block of 64, 4 for each 256 blocks |
//! | 2:4 of the first three | half of their bytes, and a bit of position for each element |
//!
//! Only the linear layers of the decoder and its experts are quantized; embedding, LM head, norms and biases are bf16 then. Routers
//! are F32 whatever the rest is: a rounded logit chooses another expert.

use crate::architecture::{Architecture, ExpertPart, LinearRole};
use crate::recipe::{BlockConstants, KEPT_OF_GROUP, Precision, SPARSE_GROUP, WeightSparsity};

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

/// Bits of the position of a kept value in its group.
const POSITION_BITS: u64 = 2;

/// Bytes of a linear layer's weight of `elements` of which two of each four stay.
fn sparse_bytes(elements: u64, precision: Precision) -> WeightBytes {
    let kept = elements / SPARSE_GROUP as u64 * KEPT_OF_GROUP as u64;
    WeightBytes {
        values: linear_bytes(kept, precision).values + (kept * POSITION_BITS).div_ceil(8),
        constants: 0,
    }
}

/// Bytes of the whole base model.
pub fn base_bytes(architecture: &Architecture, precision: Precision, sparsity: WeightSparsity) -> WeightBytes {
    let count = architecture.parameter_count();
    let dense = (count.embedding + count.lm_head + count.vectors) * precision.compute_bytes();
    let mut bytes = WeightBytes {
        values: dense,
        constants: 0,
    };
    let mut exact_vectors = 0;
    // No precision: exact, whatever the rest is.
    let mut add = |elements: usize, precision: Option<Precision>, times: u64| {
        let one = match (precision, sparsity) {
            (Some(precision), WeightSparsity::None) => linear_bytes(elements as u64, precision),
            (Some(precision), _) => sparse_bytes(elements as u64, precision),
            (None, _) => linear_bytes(elements as u64, Precision::Fp32),
        };
        bytes.values += times * one.values;
        bytes.constants += times * one.constants;
    };
    if let Some(module) = architecture.outer_module() {
        add(module.in_features * module.out_features, Some(precision), 1);
    }
    for index in 0..architecture.layers.len() {
        for module in architecture.layer_modules(index) {
            let precision = match module.role {
                LinearRole::Router => None,
                _ => Some(precision),
            };
            add(module.in_features * module.out_features, precision, 1);
        }
        let Some(experts) = architecture.experts_of(index) else {
            continue;
        };
        let [outputs, inputs] = experts.part_shape(ExpertPart::Down, architecture.hidden_size);
        add(outputs * inputs, Some(precision), 3 * experts.count as u64);
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

    #[test]
    fn sparse_weights_take_half_of_the_values_and_a_bit_for_each() {
        let bytes = |elements, precision| sparse_bytes(elements, precision).values;
        assert_eq!(bytes(1024, Precision::Fp32), 2048 + 128);
        assert_eq!(bytes(1024, Precision::Bf16), 1024 + 128);
        // A group of four alone has half a byte of positions.
        assert_eq!(bytes(4, Precision::Fp16), 4 + 1);
    }
}
