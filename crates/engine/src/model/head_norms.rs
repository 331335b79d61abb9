//! Queries and keys on their way from their projections to attention: norms, and the rotation.

use candle_core::Result;

use super::norm::Norm;
use super::rope_tables::LayerRope;
use super::traced::rope;
use super::{RopeTables, Stream};
use crate::tensor::Tensor;

/// Norms of queries and keys, over d or over all heads at once.
#[derive(Debug)]
pub(super) struct HeadNorms {
    pub query: Norm,
    pub key: Norm,
    pub order: NormOrder,
}

/// Order of the norms and the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormOrder {
    BeforeRotation,
    AfterRotation,
}

/// Norms and rotation that queries and keys go through.
#[derive(Debug)]
pub(super) struct QueryKeyPath {
    pub norms: Option<HeadNorms>,
    /// Index of the layer's rope; absent where nothing turns.
    pub rope: Option<usize>,
}

/// Queries and keys as attention reads them, and what is kept for the backward pass: where there are norms their inputs, from
/// which the rest is made again, and rstd.
pub(super) struct Turned {
    pub both: [Tensor; 2],
    pub kept: [Tensor; 2],
    pub rstd: [Option<Tensor>; 2],
}

impl QueryKeyPath {
    /// Norms and rotates q and k, which nobody else may hold.
    pub(super) fn forward(&self, both: [Tensor; 2], stream: &Stream<'_>, ropes: &RopeTables) -> Result<Turned> {
        let rope = self.rope.map(|rope| ropes.rope(rope));
        let Some(norms) = &self.norms else {
            let both = turn(both, rope, stream)?;
            return Ok(Turned {
                kept: both.clone(),
                both,
                rstd: [None, None],
            });
        };
        let kept = match norms.order {
            NormOrder::BeforeRotation => both,
            NormOrder::AfterRotation => turn(both, rope, stream)?,
        };
        let (both, rstd) = self.again(&kept, stream, ropes)?;
        Ok(Turned { both, kept, rstd })
    }

    /// Queries and keys as attention reads them, made again from what was kept, and rstd of their norms.
    pub(super) fn again(
        &self,
        kept: &[Tensor; 2],
        stream: &Stream<'_>,
        ropes: &RopeTables,
    ) -> Result<([Tensor; 2], [Option<Tensor>; 2])> {
        let Some(norms) = &self.norms else {
            return Ok((kept.clone(), [None, None]));
        };
        let turns = norms.order == NormOrder::BeforeRotation;
        let rope = self.rope.filter(|_| turns).map(|rope| ropes.rope(rope));
        if let Some(table) = rope.and_then(LayerRope::shared)
            && norms.fits_one_launch(kept)
        {
            return norms.forward_turned(kept, table, stream);
        }
        let [q, k] = kept;
        let (q, query_rstd) = norms.query.forward_heads(q)?;
        let (k, key_rstd) = norms.key.forward_heads(k)?;
        let both = turn([q, k], rope, stream)?;
        Ok((both, [Some(query_rstd), Some(key_rstd)]))
    }

    /// The gradients of q and k as the projections gave them, from those that attention gave.
    pub(super) fn backward(
        &self,
        kept: [Tensor; 2],
        rstd: [Option<Tensor>; 2],
        d_both: [Tensor; 2],
        stream: &Stream<'_>,
        ropes: &RopeTables,
    ) -> Result<[Tensor; 2]> {
        let turn_back = |both| self.turn_back(both, stream, ropes);
        let (Some(norms), [Some(query_rstd), Some(key_rstd)]) = (&self.norms, rstd) else {
            return turn_back(d_both);
        };
        let [d_q, d_k] = match norms.order {
            NormOrder::BeforeRotation => turn_back(d_both)?,
            NormOrder::AfterRotation => d_both,
        };
        // By value: the gradient of the output goes before the next is made.
        let back = |norm: &Norm, x: &Tensor, rstd: &Tensor, dy: Tensor| norm.backward_heads(x, rstd, &dy);
        let d_q = back(&norms.query, &kept[0], &query_rstd, d_q)?;
        let d_k = back(&norms.key, &kept[1], &key_rstd, d_k)?;
        drop(kept);
        match norms.order {
            NormOrder::BeforeRotation => Ok([d_q, d_k]),
            NormOrder::AfterRotation => turn_back([d_q, d_k]),
        }
    }

    /// The gradients of queries and keys before their rotation.
    pub(super) fn turn_back(&self, both: [Tensor; 2], stream: &Stream<'_>, ropes: &RopeTables) -> Result<[Tensor; 2]> {
        match self.rope {
            Some(rope) => ropes.rope(rope).backward(both, &stream.positions),
            None => Ok(both),
        }
    }
}

impl HeadNorms {
    /// Whether a GPU makes both norms and the rotation in one launch.
    fn fits_one_launch(&self, [q, _]: &[Tensor; 2]) -> bool {
        let width = self.query.weight.value().elem_count();
        q.is_on_gpu() && q.dims3().is_ok_and(|(_, _, head_dim)| head_dim == width)
    }

    fn forward_turned(
        &self,
        [q, k]: &[Tensor; 2],
        table: &rope::RopeTable,
        stream: &Stream<'_>,
    ) -> Result<([Tensor; 2], [Option<Tensor>; 2])> {
        let [of_query, of_key] = [&self.query, &self.key].map(|norm| norm.weight.to_dtype(q.dtype()));
        let norms = rope::HeadNorms {
            weights: [&of_query?, &of_key?],
            epsilon: self.query.epsilon,
            offset: self.query.offset,
        };
        let both = [q.clone(), k.clone()];
        let [(q, query_rstd), (k, key_rstd)] = rope::forward_normed(both, &norms, table, &stream.positions)?;
        Ok(([q, k], [Some(query_rstd), Some(key_rstd)]))
    }
}

fn turn(both: [Tensor; 2], rope: Option<&LayerRope>, stream: &Stream<'_>) -> Result<[Tensor; 2]> {
    match rope {
        Some(rope) => rope.forward(both, &stream.positions),
        None => Ok(both),
    }
}
