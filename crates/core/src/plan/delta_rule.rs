//! How the CPU's gated delta rule goes back through a document, and what its tasks hold: the engine's blocking.

use crate::architecture::DeltaRule;

/// Tokens whose states exist at a time in the backward pass of a document of `length` tokens: those before every such segment and
/// those within one are as many.
pub fn segment(length: usize) -> usize {
    let root = length.isqrt();
    let is_square = root * root == length;
    (if is_square { root } else { root + 1 }).max(1)
}

impl DeltaRule {
    /// Bytes that a task of the forward pass holds over a document of `length` tokens: queries, keys, values and results of a head, and
    /// its state.
    pub fn forward_bytes(&self, length: usize) -> u64 {
        let of_token = 2 * self.key_width + 2 + 2 * self.value_width;
        (4 * (length * of_token + self.state() + self.value_width)) as u64
    }

    /// Bytes of the backward pass: the forward's tensors with their gradients, the states of a segment and those before
    /// each.
    pub fn backward_bytes(&self, length: usize) -> u64 {
        let of_token = 4 * self.key_width + 2 + 3 * self.value_width + 2;
        let segment = segment(length);
        let states = length.div_ceil(segment) + segment + 1 + 1;
        (4 * (length * of_token + states * self.state() + (segment + 2) * self.value_width)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_the_root_rounded_up() {
        assert_eq!([0, 1, 2, 4, 5, 1024, 1025].map(segment), [1, 1, 2, 2, 3, 32, 33]);
    }
}
