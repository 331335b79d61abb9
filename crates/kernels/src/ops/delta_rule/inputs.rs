//! Tensors that the rule reads, and their gradients.

use crate::ops::shape;
use candle_core::{Result, Tensor};

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Hk, heads of queries and keys; divides Hv.
    pub keys: usize,
    /// Hv
    pub values: usize,
    /// dk
    pub key_width: usize,
    /// dv
    pub value_width: usize,
}

/// Tensors that the rule reads.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub mixed: &'a Tensor,
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    pub rate: &'a Tensor,
    pub shift: &'a Tensor,
    pub heads: Heads,
    /// (documents + 1,): start of each document; the last entry is the stream's length.
    pub offsets: &'a [u32],
}

/// Gradients of what trains or has something below it that does.
#[derive(Debug)]
pub struct Gradients {
    pub mixed: Tensor,
    pub a: Tensor,
    pub b: Tensor,
}

impl Heads {
    /// Values of a token that the rule reads.
    pub fn input_width(&self) -> usize {
        2 * self.keys * self.key_width + self.output_width()
    }

    /// Values of a token that it gives.
    pub fn output_width(&self) -> usize {
        self.values * self.value_width
    }

    /// Values of a head's state.
    pub fn state(&self) -> usize {
        self.key_width * self.value_width
    }

    /// Value heads that read one key head.
    pub(super) fn group(&self) -> usize {
        self.values / self.keys
    }
}

impl Inputs<'_> {
    /// Fails unless the shapes go together; returns the number of tokens.
    pub(super) fn check(&self, states: Option<&Tensor>) -> Result<usize> {
        let (tokens, heads) = (self.mixed.dim(0)?, self.heads);
        let documents = self.offsets.len().saturating_sub(1);
        let is_whole = self.offsets.first() == Some(&0) && self.offsets.last() == Some(&(tokens as u32));
        if heads.keys == 0 || !heads.values.is_multiple_of(heads.keys) || heads.state() == 0 {
            candle_core::bail!("delta rule: {heads:?}");
        }
        if !is_whole || self.offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            candle_core::bail!("delta rule: documents that do not make up {tokens} tokens");
        }
        shape::expect(self.mixed, &[tokens, heads.input_width()], "delta rule: mixed")?;
        shape::expect(self.a, &[tokens, heads.values], "delta rule: a")?;
        shape::expect(self.b, &[tokens, heads.values], "delta rule: b")?;
        shape::expect(self.rate, &[heads.values], "delta rule: rate")?;
        shape::expect(self.shift, &[heads.values], "delta rule: shift")?;
        if let Some(states) = states {
            let expected = [documents, heads.values, heads.key_width, heads.value_width];
            shape::expect(states, &expected, "delta rule: states")?;
        }
        Ok(tokens)
    }
}
