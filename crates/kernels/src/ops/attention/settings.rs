//! Settings of an attention layer, and whether its arguments fit together.

use super::super::shape;
use candle_core::{Result, Tensor};

/// Constants of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Factor on the scores, usually 1 / sqrt(head_dim).
    pub scale: f64,
    /// A query sees this many keys at most, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// Bound c of the scores, which become c tanh(s / c); `None` for no bound.
    pub soft_cap: Option<f64>,
}

/// Fails unless the shapes agree and `offsets` splits the stream.
pub(super) fn check(q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[u32]) -> Result<()> {
    let (tokens, query_heads, head_dim) = q.dims3()?;
    let (_, key_heads, _) = k.dims3()?;
    shape::expect(k, &[tokens, key_heads, head_dim], "attention: k")?;
    shape::expect(v, &[tokens, key_heads, v.dim(2)?], "attention: v")?;
    if key_heads == 0 || query_heads % key_heads != 0 {
        candle_core::bail!("attention: {query_heads} query heads cannot share {key_heads} key heads");
    }
    let splits = offsets.first() == Some(&0)
        && offsets.last().is_some_and(|last| *last as usize == tokens)
        && offsets.is_sorted();
    if !splits {
        candle_core::bail!("attention: offsets do not split a stream of {tokens} tokens into documents");
    }
    Ok(())
}
