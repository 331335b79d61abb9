//! The attention half of a decoder layer: norm, projections, rotation, attention, output projection, residual.

use candle_core::{Result, Tensor};

use super::linear::LinearGroup;
use super::norm::Norm;
use super::saved::{AttentionSaved, NormSaved};
use super::traced::rope::HeadNorms;
use super::traced::{attention, residual, rope};
use super::{DropoutKey, RopeTables, Stream};
use crate::span;
use crate::span::{Module, StepPhase};
use peft_tune_kernels::gpu;

/// x + norm_behind(o_proj(attention(rope(norm_qk(qkv_proj(norm(x)))))))
#[derive(Debug)]
pub(super) struct AttentionBlock {
    pub norm: Norm,
    /// q, k and v.
    pub projections: LinearGroup,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub output: LinearGroup,
    pub norm_behind: Option<Norm>,
    pub settings: attention::Settings,
    /// Index of the layer's rope.
    pub rope: usize,
    pub head_dim: usize,
}

impl AttentionBlock {
    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
    ) -> Result<(Tensor, AttentionSaved)> {
        let _span = span::module(Module::Attention);
        let dropout = stream.dropout.as_ref();
        let (normed, rstd) = self.norm.forward(x)?;
        let (projected, input_xa) = self.projections.forward(&normed, dropout)?;
        drop(normed);
        let [q, k, v] = self.heads(projected)?;
        // A head norm's backward needs its input; the rotation is made again from it.
        let before = self.query_norm.as_ref().map(|_| [q.clone(), k.clone()]);
        let ([q, k], [query_rstd, key_rstd]) = self.rotate([q, k], stream, ropes)?;
        let (o, lse) = attention::forward(&q, &k, &v, stream.documents(), &self.settings)?;
        let (y, output_xa, behind) = forward_out(&self.output, self.norm_behind.as_ref(), x, &flat(&o)?, dropout)?;
        let [q, k] = before.unwrap_or([q, k]);
        let saved = AttentionSaved {
            x: x.clone(),
            rstd,
            q,
            k,
            v,
            query_rstd,
            key_rstd,
            o,
            lse,
            input_xa,
            output_xa,
            behind,
        };
        Ok((y, saved))
    }

    /// The stream behind the block, (T, H), made again from what [`AttentionBlock::forward`] kept, to the same bits.
    pub(super) fn recompute_output(&self, saved: &AttentionSaved, stream: &Stream<'_>) -> Result<Tensor> {
        let _span = span::phase(StepPhase::Recompute);
        if let (Some(norm), Some(behind)) = (&self.norm_behind, &saved.behind) {
            return residual::add(&saved.x, &norm.forward(&behind.x)?.0);
        }
        self.output
            .recompute_output(&saved.x, &flat(&saved.o)?, &saved.output_xa, stream.dropout.as_ref())
    }

    /// The gradient with respect to the block's input, where `wants_dx`; adds all gradients of the block.
    pub(super) fn backward(
        &self,
        saved: AttentionSaved,
        dy: Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let _span = span::module(Module::Attention);
        let dropout = stream.dropout.as_ref();
        let d_output = backward_behind(self.norm_behind.as_ref(), saved.behind, &dy)?;
        let o = || flat(&saved.o);
        let d_o = self
            .output
            .backward(o, &saved.output_xa, vec![d_output], dropout, true)?;
        drop(saved.output_xa);
        let Some(d_o) = d_o else { return Ok(None) };
        let d_o = d_o.reshape(saved.o.shape())?;
        let both = [saved.q.clone(), saved.k.clone()];
        // What is saved with a head norm was not rotated yet.
        let [q, k] = match self.query_norm {
            Some(_) => self.rotate(both, stream, ropes)?.0,
            None => both,
        };
        let kept = attention::Saved {
            q: &q,
            k: &k,
            v: &saved.v,
            o: &saved.o,
            lse: &saved.lse,
        };
        let (d_q, d_k, d_v) = attention::backward(kept, &d_o, stream.documents(), &self.settings)?;
        drop((d_o, q, k, saved.v, saved.o, saved.lse));
        let [d_q, d_k] = rope::backward_both([d_q, d_k], ropes.table(self.rope), &stream.positions)?;
        let d_q = backward_heads(self.query_norm.as_ref(), &saved.q, saved.query_rstd.as_ref(), d_q)?;
        let d_k = backward_heads(self.key_norm.as_ref(), &saved.k, saved.key_rstd.as_ref(), d_k)?;
        drop((saved.q, saved.k));
        let normed = || Ok(self.norm.forward(&saved.x)?.0);
        let d_projected = vec![flat(&d_q)?, flat(&d_k)?, flat(&d_v)?];
        drop((d_q, d_k, d_v));
        let wants_d_normed = wants_dx || self.norm.weight.is_trained();
        let d_normed = self
            .projections
            .backward(normed, &saved.input_xa, d_projected, dropout, wants_d_normed)?;
        let Some(d_normed) = d_normed else { return Ok(None) };
        if !wants_dx {
            self.norm.add_weight_gradient(&saved.x, &saved.rstd, &d_normed)?;
            return Ok(None);
        }
        let d_x = self.norm.backward_onto(&dy, &saved.x, &saved.rstd, &d_normed)?;
        Ok(Some(d_x))
    }

    /// (T, heads·d) of q, k and v to (T, heads, d).
    pub(super) fn heads(&self, projected: Vec<Tensor>) -> Result<[Tensor; 3]> {
        let split = |tensor: &Tensor| {
            let (tokens, width) = tensor.dims2()?;
            tensor.reshape((tokens, width / self.head_dim, self.head_dim))
        };
        match projected.as_slice() {
            [q, k, v] => Ok([split(q)?, split(k)?, split(v)?]),
            other => candle_core::bail!("attention: {} projections instead of q, k and v", other.len()),
        }
    }

    /// q and k as attention reads them, behind their norms and rotated, and what the norms keep. Without norms nobody else may
    /// hold them.
    pub(super) fn rotate(
        &self,
        [q, k]: [Tensor; 2],
        stream: &Stream<'_>,
        ropes: &RopeTables,
    ) -> Result<([Tensor; 2], [Option<Tensor>; 2])> {
        let table = ropes.table(self.rope);
        if let (Some(query_norm), Some(key_norm)) = (&self.query_norm, &self.key_norm)
            && gpu::takes(&q)
        {
            let weights = [query_norm, key_norm].map(|norm| norm.weight.to_dtype(q.dtype()));
            let [of_query, of_key] = weights;
            let norms = HeadNorms {
                weights: [&of_query?, &of_key?],
                epsilon: query_norm.epsilon,
                offset: query_norm.offset,
            };
            let [(q, query_rstd), (k, key_rstd)] = rope::forward_normed([q, k], &norms, table, &stream.positions)?;
            return Ok(([q, k], [Some(query_rstd), Some(key_rstd)]));
        }
        let (q, query_rstd) = forward_heads(self.query_norm.as_ref(), q)?;
        let (k, key_rstd) = forward_heads(self.key_norm.as_ref(), k)?;
        let rotated = rope::forward_both([q, k], table, &stream.positions)?;
        Ok((rotated, [query_rstd, key_rstd]))
    }
}

/// The end of a block: x plus the output of the last layer `out` on `inner`, through the norm behind it where there is
/// one; with xa of the layer and what the norm keeps.
pub(super) fn forward_out(
    out: &LinearGroup,
    norm: Option<&Norm>,
    x: &Tensor,
    inner: &Tensor,
    dropout: Option<&DropoutKey>,
) -> Result<(Tensor, Vec<Tensor>, Option<NormSaved>)> {
    if norm.is_none() {
        let (y, xa) = out.forward_onto(x, inner, dropout)?;
        return Ok((y, xa, None));
    }
    let (mut outputs, xa) = out.forward(inner, dropout)?;
    let (normed, behind) = forward_behind(norm, outputs.remove(0))?;
    Ok((residual::add(x, &normed)?, xa, behind))
}

/// The norm behind a block, where there is one.
pub(super) fn forward_behind(norm: Option<&Norm>, y: Tensor) -> Result<(Tensor, Option<NormSaved>)> {
    let Some(norm) = norm else { return Ok((y, None)) };
    let (normed, rstd) = norm.forward(&y)?;
    Ok((normed, Some(NormSaved { x: y, rstd })))
}

/// The gradient before the norm behind a block.
pub(super) fn backward_behind(norm: Option<&Norm>, saved: Option<NormSaved>, dy: &Tensor) -> Result<Tensor> {
    match (norm, saved) {
        (Some(norm), Some(saved)) => norm.backward(&saved.x, &saved.rstd, dy),
        _ => Ok(dy.clone()),
    }
}

/// The norm of heads, where there is one, and what it keeps.
fn forward_heads(norm: Option<&Norm>, x: Tensor) -> Result<(Tensor, Option<Tensor>)> {
    let Some(norm) = norm else { return Ok((x, None)) };
    let (normed, rstd) = norm.forward_heads(&x)?;
    Ok((normed, Some(rstd)))
}

fn backward_heads(norm: Option<&Norm>, x: &Tensor, rstd: Option<&Tensor>, dy: Tensor) -> Result<Tensor> {
    match (norm, rstd) {
        (Some(norm), Some(rstd)) => norm.backward_heads(x, rstd, &dy),
        _ => Ok(dy),
    }
}

/// (T, heads, d) to (T, heads·d), without a copy.
pub(super) fn flat(x: &Tensor) -> Result<Tensor> {
    x.flatten_from(1)
}
