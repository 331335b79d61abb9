//! The attention half of a decoder layer: norm, projections, rotation, attention, output projection, residual.

use candle_core::{Result, Tensor};

use super::block_end::BlockEnd;
use super::head_norms::{QueryKeyPath, Turned};
use super::latent::Latent;
use super::linear::LinearGroup;
use super::norm::Norm;
use super::saved::{AttentionSaved, LatentSaved};
use super::traced::{attention, head_gate, residual, sinks};
use super::{RopeTables, Stream};
use crate::span;
use crate::span::{Module, StepPhase};

/// x + end(attention(rope(norm_qk(qkv_proj(norm(x))))))
#[derive(Debug)]
pub(super) struct AttentionBlock {
    /// Absent where the norm stands behind the block only.
    pub norm: Option<Norm>,
    /// q, k and v, or the first projections of latent attention.
    pub projections: LinearGroup,
    pub latent: Option<Latent>,
    pub path: QueryKeyPath,
    pub end: BlockEnd,
    pub settings: attention::Settings,
    /// (Hq,), one more logit of each head.
    pub sinks: Option<Tensor>,
    pub head_dim: usize,
    /// Whether each query comes with a gate on the result of its head.
    pub has_gates: bool,
}

/// Queries, keys and values as attention reads them, and what is kept of what they were made from.
pub(super) struct Attended {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// Queries and keys, or the inputs of their norms.
    pub kept: [Tensor; 2],
    pub rstd: [Option<Tensor>; 2],
    pub latent: Option<LatentSaved>,
}

/// What backward gets: the gradient of what the block adds to the stream, and the one that reaches its input past the
/// block.
pub(super) struct BlockGradients {
    pub branch: Tensor,
    pub past: Tensor,
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
        let (normed, rstd) = forward_before(self.norm.as_ref(), x)?;
        let (projected, input_xa) = self.projections.forward(&normed, dropout)?;
        drop(normed);
        let (projected, gate) = self.without_gates(projected)?;
        let Attended {
            q,
            k,
            v,
            kept,
            rstd: [query_rstd, key_rstd],
            latent,
        } = self.attended(projected, stream, ropes)?;
        let (o, lse) = attention::forward(&q, &k, &v, stream.documents(), &self.settings)?;
        if let Some(sinks) = &self.sinks {
            sinks::apply(&o, &lse, sinks)?;
        }
        let gated = gated(&o, gate.as_ref())?;
        let (y, output_xa, behind) = self.end.forward(x, &gated, dropout)?;
        let [q, k] = kept;
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
            gate,
            input_xa,
            output_xa,
            behind,
            latent,
        };
        Ok((y, saved))
    }

    /// The stream behind the block, (T, H), made again from what [`AttentionBlock::forward`] kept, to the same bits.
    pub(super) fn recompute_output(&self, saved: &AttentionSaved, stream: &Stream<'_>) -> Result<Tensor> {
        let _span = span::phase(StepPhase::Recompute);
        let inner = || gated(&saved.o, saved.gate.as_ref());
        let (xa, behind) = (&saved.output_xa, saved.behind.as_ref());
        self.end.recompute(&saved.x, inner, xa, behind, stream.dropout.as_ref())
    }

    /// The gradient with respect to the block's input, where `wants_dx`; adds all gradients of the block.
    pub(super) fn backward(
        &self,
        saved: AttentionSaved,
        BlockGradients { branch, past }: BlockGradients,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let _span = span::module(Module::Attention);
        let dropout = stream.dropout.as_ref();
        let d_output = self.end.backward(saved.behind, &branch)?;
        drop(branch);
        let o = || gated(&saved.o, saved.gate.as_ref());
        let out = &self.end.out;
        let d_o = out.backward(o, &saved.output_xa, vec![d_output], dropout, true)?;
        drop(saved.output_xa);
        let Some(mut d_o) = d_o else { return Ok(None) };
        let mut d_gate = None;
        if let Some(gate) = saved.gate {
            let (of_o, of_gate) = head_gate::backward(&flat(&saved.o)?, &gate, &d_o)?;
            (d_o, d_gate) = (of_o, Some(of_gate));
        }
        let d_o = d_o.reshape(saved.o.shape())?;
        let in_between = [saved.q, saved.k];
        let ([q, k], _) = self.path.again(&in_between, stream, ropes)?;
        let kept = attention::Saved {
            q: &q,
            k: &k,
            v: &saved.v,
            o: &saved.o,
            lse: &saved.lse,
        };
        let (d_q, d_k, d_v) = attention::backward(kept, &d_o, stream.documents(), &self.settings)?;
        drop((d_o, q, k, saved.v, saved.o, saved.lse));
        let d_projected = match (&self.latent, saved.latent) {
            (Some(latent), Some(saved)) => {
                drop(in_between);
                latent.backward(saved, [d_q, d_k, d_v], &self.path, stream, ropes)?
            }
            _ => {
                let rstd = [saved.query_rstd, saved.key_rstd];
                let [d_q, d_k] = self.path.backward(in_between, rstd, [d_q, d_k], stream, ropes)?;
                let d_projected = vec![self.with_gates(d_q, d_gate)?, flat(&d_k)?, flat(&d_v)?];
                drop((d_k, d_v));
                d_projected
            }
        };
        let normed = || Ok(forward_before(self.norm.as_ref(), &saved.x)?.0);
        let wants_d_normed = wants_dx || self.norm.as_ref().is_some_and(|norm| norm.weight.is_trained());
        let d_normed = self
            .projections
            .backward(normed, &saved.input_xa, d_projected, dropout, wants_d_normed)?;
        let Some(d_normed) = d_normed else { return Ok(None) };
        let before = Before {
            norm: self.norm.as_ref(),
            x: &saved.x,
            rstd: saved.rstd.as_ref(),
        };
        before.backward(&past, &d_normed, wants_dx)
    }

    /// q, k and v, and the gates that came with q where there are any, (T, Hq d).
    pub(super) fn without_gates(&self, mut projected: Vec<Tensor>) -> Result<(Vec<Tensor>, Option<Tensor>)> {
        let Some(first) = projected.first_mut().filter(|_| self.has_gates) else {
            return Ok((projected, None));
        };
        let (q, gate) = head_gate::split(first, self.head_dim)?;
        *first = q;
        Ok((projected, Some(gate)))
    }

    /// The gradient of what the first projection gave.
    fn with_gates(&self, d_q: Tensor, d_gate: Option<Tensor>) -> Result<Tensor> {
        match d_gate {
            Some(d_gate) => head_gate::join(&flat(&d_q)?, &d_gate, self.head_dim),
            None => flat(&d_q),
        }
    }

    /// From the outputs of the projections to what attention reads.
    pub(super) fn attended(&self, projected: Vec<Tensor>, stream: &Stream<'_>, ropes: &RopeTables) -> Result<Attended> {
        if let Some(latent) = &self.latent {
            return latent.forward(projected, &self.path, stream, ropes);
        }
        let [q, k, v] = self.heads(projected)?;
        let Turned {
            both: [q, k],
            kept,
            rstd,
        } = self.path.forward([q, k], stream, ropes)?;
        Ok(Attended {
            q,
            k,
            v,
            kept,
            rstd,
            latent: None,
        })
    }

    /// (T, heads·d) of q, k and v to (T, heads, d).
    fn heads(&self, projected: Vec<Tensor>) -> Result<[Tensor; 3]> {
        let split = |tensor: &Tensor| {
            let (tokens, width) = tensor.dims2()?;
            tensor.reshape((tokens, width / self.head_dim, self.head_dim))
        };
        match projected.as_slice() {
            [q, k, v] => Ok([split(q)?, split(k)?, split(v)?]),
            other => candle_core::bail!("attention: {} projections instead of q, k and v", other.len()),
        }
    }
}

/// What the output projection reads, (T, Hq d): attention's result, times the gates where there are any.
pub(super) fn gated(o: &Tensor, gate: Option<&Tensor>) -> Result<Tensor> {
    match gate {
        Some(gate) => head_gate::forward(&flat(o)?, gate),
        None => flat(o),
    }
}

/// The norm before a block, where there is one: its output and what it keeps.
pub(super) fn forward_before(norm: Option<&Norm>, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    let Some(norm) = norm else { return Ok((x.clone(), None)) };
    let (normed, rstd) = norm.forward(x)?;
    Ok((normed, Some(rstd)))
}

/// The norm before a block in the backward pass.
pub(super) struct Before<'a> {
    pub norm: Option<&'a Norm>,
    pub x: &'a Tensor,
    pub rstd: Option<&'a Tensor>,
}

impl Before<'_> {
    /// The gradient of the block's input, where it is wanted: `past`, and what the norm makes of `d_normed`. Adds the norm's
    /// own.
    pub(super) fn backward(&self, past: &Tensor, d_normed: &Tensor, wants_dx: bool) -> Result<Option<Tensor>> {
        let (Some(norm), Some(rstd)) = (self.norm, self.rstd) else {
            return wants_dx.then(|| residual::add(past, d_normed)).transpose();
        };
        if !wants_dx {
            norm.add_weight_gradient(self.x, rstd, d_normed)?;
            return Ok(None);
        }
        norm.backward_onto(past, self.x, rstd, d_normed).map(Some)
    }
}

/// (T, heads, d) to (T, heads·d), without a copy.
pub(super) fn flat(x: &Tensor) -> Result<Tensor> {
    x.flatten_from(1)
}
