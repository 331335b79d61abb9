//! Keys and values of the tokens that a model has read, so that each further token costs only itself; in layers that do not attend
//! what their mixers go on from.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `keys` | (sequences · capacity, Hkv, d) | of one layer, as rotated; compute dtype |
//! | `values` | (sequences · capacity, Hkv, dv) | likewise; of latent attention as its second projection gives them |
//!
//! | `before` | (sequences, K - 1, W) | what a convolution reads of the last tokens, the oldest first; compute dtype |
//! | `states` | (sequences, Hv, dk, dv) F32 | of a delta rule, behind the last token |
//!
//! Each sequence has `capacity` rows of its own and fills them from the first.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::tensor;
use peft_tune_core::architecture::{Architecture, LayerHeads, Mixer};

/// The cache of all layers.
#[derive(Debug)]
pub(crate) struct KeyValueCache {
    /// Caches of the layers; absent where a layer reads the keys and values of another.
    layers: Vec<Option<LayerCache>>,
    /// Tokens of each sequence that are kept.
    lengths: Vec<usize>,
    /// Most tokens of a sequence.
    capacity: usize,
}

/// The cache of one layer.
#[derive(Debug)]
enum LayerCache {
    Attention { keys: Tensor, values: Tensor },
    Mixed { before: Tensor, states: Option<Tensor> },
}

/// The place of one layer's cache in a pass: `counts` new tokens of each sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSlot<'a> {
    cache: &'a KeyValueCache,
    layer: usize,
    counts: &'a [usize],
}

impl KeyValueCache {
    /// An empty cache for so many sequences of at most `capacity` tokens.
    pub(crate) fn new(
        architecture: &Architecture,
        sequences: usize,
        capacity: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let before = |taps: usize, width: usize| Tensor::zeros((sequences, taps - 1, width), dtype, device);
        let layer = |index: usize| {
            if architecture.source_of(index).is_some() {
                return Ok(None);
            }
            let LayerHeads { kv_heads, head_dim } = architecture.heads_of(index);
            let empty = |width| Tensor::zeros((sequences * capacity, kv_heads, width), dtype, device);
            Ok(Some(match architecture.mixer(index) {
                Mixer::Attention => LayerCache::Attention {
                    keys: empty(head_dim)?,
                    values: empty(architecture.value_dim(index))?,
                },
                Mixer::Convolution(convolution) => LayerCache::Mixed {
                    before: before(convolution.taps, architecture.hidden_size)?,
                    states: None,
                },
                Mixer::DeltaRule(rule) => {
                    let shape = (sequences, rule.value_heads, rule.key_width, rule.value_width);
                    LayerCache::Mixed {
                        before: before(rule.taps, rule.input_width())?,
                        states: Some(Tensor::zeros(shape, DType::F32, device)?),
                    }
                }
            }))
        };
        Ok(Self {
            layers: (0..architecture.layers.len()).map(layer).collect::<Result<_>>()?,
            lengths: vec![0; sequences],
            capacity,
        })
    }

    /// Tokens of each sequence that are kept.
    pub(crate) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Most tokens of a sequence.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether no token is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.iter().all(|length| *length == 0)
    }

    /// Bytes of all that is kept, free rows included.
    pub(crate) fn bytes(&self) -> usize {
        let tensors = self.layers.iter().flatten().flat_map(|layer| match layer {
            LayerCache::Attention { keys, values } => [Some(keys), Some(values)],
            LayerCache::Mixed { before, states } => [Some(before), states.as_ref()],
        });
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        tensors.flatten().map(bytes).sum()
    }

    /// One layer's place in a pass of `counts` new tokens.
    pub(super) fn slot<'a>(&'a self, layer: usize, counts: &'a [usize]) -> CacheSlot<'a> {
        CacheSlot {
            cache: self,
            layer,
            counts,
        }
    }

    /// Takes note that all layers have the new tokens.
    pub(super) fn advance(&mut self, counts: &[usize]) {
        for (length, count) in self.lengths.iter_mut().zip(counts) {
            *length += count;
        }
    }
}

impl CacheSlot<'_> {
    /// Whether the new tokens are the first.
    pub(super) fn is_first(&self) -> bool {
        self.cache.is_empty()
    }

    /// Keys and values of all tokens, the new ones included, which have been kept.
    pub(super) fn kept(&self) -> Result<(&Tensor, &Tensor)> {
        match self.layer()? {
            LayerCache::Attention { keys, values } => Ok((keys, values)),
            LayerCache::Mixed { .. } => candle_core::bail!("a layer that does not attend keeps no keys"),
        }
    }

    fn layer(&self) -> Result<&LayerCache> {
        match &self.cache.layers[self.layer] {
            Some(layer) => Ok(layer),
            None => candle_core::bail!("layer {} keeps nothing of its own", self.layer),
        }
    }

    /// Keeps the new tokens' keys and values, (T, Hkv, d), and returns those of all tokens.
    pub(super) fn keep(&self, keys: &tensor::Tensor, values: &tensor::Tensor) -> Result<(&Tensor, &Tensor)> {
        let ((all_keys, all_values), keys, values) = (self.kept()?, keys.real()?, values.real()?);
        let mut first = 0;
        for (sequence, count) in self.counts.iter().enumerate() {
            let row = sequence * self.cache.capacity + self.cache.lengths[sequence];
            let part = |tensor: &Tensor| tensor.narrow(0, first, *count)?.contiguous();
            all_keys.slice_set(&part(keys)?, 0, row)?;
            all_values.slice_set(&part(values)?, 0, row)?;
            first += count;
        }
        Ok((all_keys, all_values))
    }

    fn mixed(&self) -> Result<(&Tensor, Option<&Tensor>)> {
        match self.layer()? {
            LayerCache::Mixed { before, states } => Ok((before, states.as_ref())),
            LayerCache::Attention { .. } => candle_core::bail!("a layer that attends keeps no rows and states"),
        }
    }

    /// Tokens before the new ones that a convolution reads.
    pub(super) fn before(&self) -> Result<&Tensor> {
        Ok(self.mixed()?.0)
    }

    /// The states that the new tokens go on from.
    pub(super) fn states(&self) -> Result<&Tensor> {
        match self.mixed()? {
            (_, Some(states)) => Ok(states),
            (_, None) => candle_core::bail!("a convolution keeps no states"),
        }
    }

    /// Keeps the last rows of what was convolved, (T, W), of each sequence.
    pub(super) fn keep_rows(&self, rows: &tensor::Tensor) -> Result<()> {
        let (rows, before, mut first) = (rows.real()?, self.before()?, 0);
        let kept = before.dim(1)?;
        for (sequence, count) in self.counts.iter().enumerate() {
            let new = rows.narrow(0, first + count - kept.min(*count), kept.min(*count))?;
            let old = before
                .get(sequence)?
                .narrow(0, kept.min(*count), kept - kept.min(*count))?;
            if kept > 0 {
                let last = Tensor::cat(&[&old, &new], 0)?.unsqueeze(0)?;
                before.slice_set(&last.contiguous()?, 0, sequence)?;
            }
            first += count;
        }
        Ok(())
    }

    /// The rows that each new token sees: those of its sequence up to itself, within the window and its chunk.
    pub(super) fn places(&self, window: Option<usize>, chunk: Option<usize>) -> Vec<Range<usize>> {
        let mut places = Vec::with_capacity(self.counts.iter().sum());
        for (sequence, count) in self.counts.iter().enumerate() {
            let start = sequence * self.cache.capacity;
            let length = self.cache.lengths[sequence];
            for token in 0..*count {
                let (place, end) = (length + token, start + length + token + 1);
                let start = start + chunk.map_or(0, |chunk| place / chunk * chunk);
                let first = window.map_or(start, |window| start.max(end.saturating_sub(window)));
                places.push(first..end);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sees_its_own_sequence_within_the_window() {
        let cache = KeyValueCache {
            layers: Vec::new(),
            lengths: vec![3, 0],
            capacity: 10,
        };
        let slot = cache.slot(0, &[2, 1]);
        assert_eq!(slot.places(None, None), [0..4, 0..5, 10..11]);
        assert_eq!(slot.places(Some(2), None), [2..4, 3..5, 10..11]);
        assert_eq!(slot.places(None, Some(2)), [2..4, 4..5, 10..11]);
    }
}
