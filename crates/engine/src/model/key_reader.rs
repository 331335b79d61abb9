//! Attention on the keys and values of an earlier layer: only queries are a layer's own.

use candle_core::Result;

use super::attended::{Attended, flat};
use super::chunks::Chunks;
use super::cross_layer::CrossLayer;
use super::norm::Norm;
use super::saved::HeadsSaved;
use super::traced::attention;
use super::{RopeTables, Stream};
use crate::tensor::Tensor;

/// Keys and values of another layer that a layer reads, and what its queries go through.
#[derive(Debug)]
pub(super) struct KeyReader {
    /// The layer that they are of.
    pub source: usize,
    pub norm: Option<Norm>,
    /// Index of the layer's rope.
    pub rope: Option<usize>,
    /// Whether the gradients of keys and values are wanted.
    pub passes_gradients: bool,
}

impl KeyReader {
    /// Queries, and the keys and values of the other layer, from the only projection.
    pub(super) fn attended(
        &self,
        projected: Vec<Tensor>,
        head_dim: usize,
        (stream, ropes): (&Stream<'_>, &RopeTables),
        [k, v]: [Tensor; 2],
    ) -> Result<Attended> {
        let [queries] = <[Tensor; 1]>::try_from(projected).map_err(|other| {
            candle_core::Error::Msg(format!(
                "attention: {} projections instead of queries alone",
                other.len()
            ))
        })?;
        let (tokens, width) = queries.dims2()?;
        let kept_q = queries.reshape((tokens, width / head_dim, head_dim))?;
        drop(queries);
        let (q, rstd) = self.queries(&kept_q, stream, ropes)?;
        Ok(Attended {
            kept_q,
            kept_k: None,
            kept_v: None,
            q,
            k,
            v,
            rstd: [rstd, None, None],
            latent: None,
        })
    }

    /// Queries as attention reads them, and rstd of their norm.
    fn queries(&self, q: &Tensor, stream: &Stream<'_>, ropes: &RopeTables) -> Result<(Tensor, Option<Tensor>)> {
        let (q, rstd) = match &self.norm {
            Some(norm) => norm.forward_heads(q).map(|(q, rstd)| (q, Some(rstd)))?,
            None => (q.clone(), None),
        };
        match self.rope {
            Some(rope) => Ok((ropes.rope(rope).forward_queries(&q, &stream.positions)?, rstd)),
            None => Ok((q, rstd)),
        }
    }

    /// The gradient of the only projection's output; what keys and values get goes to the layer that they are of.
    pub(super) fn backward(
        &self,
        saved: HeadsSaved,
        d_o: Tensor,
        settings: &attention::Settings,
        (stream, ropes): (&Stream<'_>, &RopeTables),
        cross: &mut CrossLayer,
    ) -> Result<Vec<Tensor>> {
        let [k, v] = cross.shared(self.source)?;
        let q = self.queries(&saved.q, stream, ropes)?.0;
        let kept = attention::Saved {
            q: &q,
            k: &k,
            v: &v,
            o: &saved.o,
            lse: &saved.lse,
        };
        let (d_q, d_k, d_v) = attention::backward(kept, &d_o, Chunks::new(stream, None).stays_in(), settings)?;
        drop((d_o, q, k, v, saved.o, saved.lse));
        if self.passes_gradients {
            cross.add_gradients(self.source, [d_k, d_v])?;
        } else {
            drop((d_k, d_v));
        }
        let d_q = match self.rope {
            Some(rope) => {
                let turned = ropes.rope(rope).backward_queries(&d_q, &stream.positions)?;
                drop(d_q);
                turned
            }
            None => d_q,
        };
        let [rstd, ..] = &saved.rstd;
        match (&self.norm, rstd) {
            (Some(norm), Some(rstd)) => Ok(vec![flat(&norm.backward_heads(&saved.q, rstd, &d_q)?)?]),
            _ => Ok(vec![flat(&d_q)?]),
        }
    }
}
