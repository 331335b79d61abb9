//! The forward pass of generation: tokens that follow those in a cache of keys and values, or of what other mixers keep.

use candle_core::Result;

use super::attended::Attended;
use super::attention_block::{AttentionBlock, gated};
use super::cache::{CacheSlot, KeyValueCache};
use super::cross_layer::CrossLayer;
use super::decoder::Decoder;
use super::norm_before::forward_before;
use super::traced::{attention, cached_attention, sinks};
use super::{RopeTables, Stream};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

impl Decoder {
    /// The normed hidden states (T, H) of `stream`: its documents continue with the sequences of `cache`, which has
    /// room for them and keeps their keys and values.
    pub(crate) fn infer(&self, stream: &Stream<'_>, ropes: &RopeTables, cache: &mut KeyValueCache) -> Result<Tensor> {
        let counts: Vec<usize> = stream
            .documents()
            .real()?
            .offsets
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize)
            .collect();
        let fits = cache.lengths().iter().zip(&counts);
        if counts.len() != cache.lengths().len()
            || fits
                .into_iter()
                .any(|(length, count)| length + count > cache.capacity())
        {
            candle_core::bail!(
                "{counts:?} tokens do not go on with sequences of {:?} tokens in a cache for {}",
                cache.lengths(),
                cache.capacity()
            );
        }
        let mut x = self.begin(&stream.ids)?;
        let mut cross = self.cross_layer(&x, stream)?;
        for (index, layer) in self.layers.iter().enumerate() {
            self.bring_up(index)?;
            let _span = span::layer(index);
            let slot = cache.slot(layer.mixer.source().unwrap_or(index), &counts);
            let between = layer.mixer.infer(&x, stream, (ropes, &mut cross), &slot)?;
            let y = layer.mlp.forward(layer.input_of_mlp(&x, &between), &between, stream)?.0;
            x = layer.scaled(layer.with_input(y, stream, &cross)?.0)?;
        }
        cache.advance(&counts);
        self.scaled_for_head(self.final_norm.forward(&x)?.0)
    }
}

impl AttentionBlock {
    /// The layer whose keys and values it reads, where they are not its own.
    pub(super) fn source(&self) -> Option<usize> {
        self.reader.as_ref().map(|reader| reader.source)
    }

    /// The stream behind the block, (T, H).
    pub(super) fn infer(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        (ropes, cross): (&RopeTables, &mut CrossLayer),
        slot: &CacheSlot<'_>,
    ) -> Result<Tensor> {
        let _span = span::module(Module::Attention);
        let (normed, _) = forward_before(self.norm.as_ref(), x)?;
        let (projected, _) = self.projections.forward(&normed, &stream.pass)?;
        let (projected, gate) = self.without_gates(projected)?;
        let Attended { q, k, v, .. } = self.attended(projected, stream, ropes, cross)?;
        let is_first = slot.is_first();
        let (keys, values) = match self.source() {
            Some(_) => slot.kept()?,
            None => slot.keep(&k, &v)?,
        };
        let o = match is_first {
            true => {
                let (o, lse) = attention::forward(&q, &k, &v, self.chunks(stream).stays_in(), &self.settings)?;
                if let Some(sinks) = &self.sinks {
                    sinks::apply(&o, &lse, sinks)?;
                }
                o
            }
            false => {
                let places = slot.places(self.settings.window, self.chunk);
                cached_attention::forward((&q, keys, values), &places, &self.settings, self.sinks.as_ref())?
            }
        };
        Ok(self.end.forward(x, &gated(&o, gate.as_ref())?, &stream.pass)?.0)
    }
}
