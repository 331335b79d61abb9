//! Work and memory traffic of an op, from the shapes of its operands.

use candle_core::Tensor;

/// Arithmetic and memory traffic of one op.
///
/// FLOPs are those of its matrix products, a multiplication and an addition each counted; bytes are the least that must
/// move: every operand read once, every result written once, in the form in which it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// FLOPs that the hardware computes.
    pub flops: u64,
    /// FLOPs of `flops` that were computed before and not kept.
    pub recomputed_flops: u64,
    /// FLOPs of `flops` that belong to adapters.
    pub adapter_flops: u64,
    pub bytes: u64,
    /// The largest operand's storage: `f32`, `bf16`, `f16`, `int8`, `nf4`; empty where the op has none.
    pub storage: &'static str,
    pub shape: Shape,
}

impl Work {
    /// `passes` readings or writings of a flat buffer.
    pub(crate) fn on_buffer(buffer: &Tensor, passes: usize) -> Self {
        Self {
            bytes: (passes * buffer.elem_count() * buffer.dtype().size_in_bytes()) as u64,
            storage: "f32",
            shape: Shape::new(buffer.dims()),
            ..Self::default()
        }
    }
}

/// Up to four dimensions that tell one call of an op from another of different size; for a product
/// (rows, columns, depth).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    dims: [u32; 4],
    rank: u8,
    /// Place of the dimension that counts tokens; 4 and more where there is none.
    tokens: u8,
}

impl Shape {
    /// The first four of `dims`, of which none counts tokens.
    pub fn new(dims: &[usize]) -> Self {
        Self::with_tokens(dims, dims.len())
    }

    /// The first four of `dims`; the one at `place` counts tokens, which differ from one batch to the next.
    pub fn with_tokens(dims: &[usize], place: usize) -> Self {
        let mut shape = Self {
            tokens: u8::try_from(place).unwrap_or(u8::MAX),
            ..Self::default()
        };
        for (slot, dim) in shape.dims.iter_mut().zip(dims) {
            *slot = u32::try_from(*dim).unwrap_or(u32::MAX);
            shape.rank += 1;
        }
        shape
    }

    /// The shape for any number of tokens, which is written as `T`.
    pub fn of_any_tokens(mut self) -> Self {
        if let Some(tokens) = self.dims.get_mut(usize::from(self.tokens)) {
            *tokens = 0;
        }
        self
    }
}

impl std::fmt::Display for Shape {
    /// `1024x576x1536`
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, dim) in self.dims[..usize::from(self.rank)].iter().enumerate() {
            let separator = if place == 0 { "" } else { "x" };
            match dim {
                0 => write!(formatter, "{separator}T")?,
                dim => write!(formatter, "{separator}{dim}")?,
            }
        }
        Ok(())
    }
}

impl std::ops::Add for Work {
    type Output = Self;

    /// Sums; shape and storage stay those of the left side.
    fn add(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            recomputed_flops: self.recomputed_flops + other.recomputed_flops,
            adapter_flops: self.adapter_flops + other.adapter_flops,
            bytes: self.bytes + other.bytes,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_written_with_a_cross() {
        assert_eq!(Shape::new(&[1024, 576, 1536]).to_string(), "1024x576x1536");
        assert_eq!(Shape::default().to_string(), "");
        assert_eq!(Shape::new(&[1, 2, 3, 4, 5]).to_string(), "1x2x3x4");
        assert_eq!(Shape::with_tokens(&[7, 2], 0).to_string(), "7x2");
        assert_eq!(Shape::with_tokens(&[7, 2], 0).of_any_tokens().to_string(), "Tx2");
        assert_eq!(Shape::new(&[7, 2]).of_any_tokens().to_string(), "7x2");
    }
}
