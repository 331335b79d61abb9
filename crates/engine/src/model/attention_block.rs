//! The attention half of a decoder layer: norm, projections, rotation, attention, output projection, residual.

use candle_core::Result;

use super::attended::{Attended, flat};
use super::block_end::BlockEnd;
use super::block_gradients::BlockGradients;
use super::chunks::Chunks;
use super::cross_layer::CrossLayer;
use super::head_norms::{QueryKeyPath, Turned};
use super::key_reader::KeyReader;
use super::latent::Latent;
use super::linear::LinearGroup;
use super::norm::Norm;
use super::norm_before::{Before, forward_before};
use super::saved::{AttentionSaved, HeadsSaved};
use super::traced::{attention, head_gate, residual, sinks};
use super::{RopeTables, Stream};
use crate::span;
use crate::span::{Module, StepPhase};
use crate::tensor::Tensor;

/// x + end(attention(rope(norm_qk(qkv_proj(norm(x))))))
#[derive(Debug)]
pub(super) struct AttentionBlock {
    /// Norm before the block; absent where it stands behind the block only.
    pub norm: Option<Norm>,
    /// q, k and v, q and k where one projection is for keys and values, or the first projections of latent attention.
    pub projections: LinearGroup,
    pub latent: Option<Latent>,
    pub path: QueryKeyPath,
    /// Norm of each head of v.
    pub value_norm: Option<Norm>,
    pub end: BlockEnd,
    pub settings: attention::Settings,
    /// (Hq,), one more logit of each head.
    pub sinks: Option<candle_core::Tensor>,
    pub head_dim: usize,
    /// Whether each query comes with a gate on the result of its head.
    pub has_gates: bool,
    /// The layer's number where later layers read its keys and values.
    pub shares: Option<usize>,
    /// Reader of the keys and values of an earlier layer, where the block has none of its own.
    pub reader: Option<KeyReader>,
    /// Tokens of a chunk that attention stays in.
    pub chunk: Option<usize>,
}

impl AttentionBlock {
    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        cross: &mut CrossLayer,
    ) -> Result<(Tensor, AttentionSaved)> {
        let _span = span::module(Module::Attention);
        let pass = &stream.pass;
        let (normed, rstd) = forward_before(self.norm.as_ref(), x)?;
        let (projected, input_xa) = self.projections.forward(&normed, pass)?;
        drop(normed);
        let (projected, gate) = self.without_gates(projected)?;
        let Attended {
            q,
            k,
            v,
            kept_q,
            kept_k,
            kept_v,
            rstd: head_rstd,
            latent,
        } = self.attended(projected, stream, ropes, cross)?;
        let chunks = self.chunks(stream);
        let (o, lse) = attention::forward(&q, &k, &v, chunks.stays_in(), &self.settings)?;
        if let Some(sinks) = &self.sinks {
            sinks::apply(&o, &lse, sinks)?;
        }
        let gated = gated(&o, gate.as_ref())?;
        let (y, output_xa, behind) = self.end.forward(x, &gated, pass)?;
        let saved = AttentionSaved {
            x: x.clone(),
            rstd,
            heads: HeadsSaved {
                q: kept_q,
                k: kept_k,
                v: kept_v,
                rstd: head_rstd,
                o,
                lse,
                latent,
            },
            gate,
            input_xa,
            output_xa,
            behind,
        };
        Ok((y, saved))
    }

    /// The stream behind the block, (T, H), made again from what [`AttentionBlock::forward`] kept, to the same bits.
    pub(super) fn recompute_output(&self, saved: &AttentionSaved, stream: &Stream<'_>) -> Result<Tensor> {
        let _span = span::phase(StepPhase::Recompute);
        let inner = || gated(&saved.heads.o, saved.gate.as_ref());
        let (xa, behind) = (&saved.output_xa, saved.behind.as_ref());
        self.end.recompute(&saved.x, inner, xa, behind, &stream.pass)
    }

    /// The gradient with respect to the block's input, where `wants_dx`; adds all gradients of the block.
    pub(super) fn backward(
        &self,
        saved: AttentionSaved,
        BlockGradients { branch, past }: BlockGradients,
        stream: &Stream<'_>,
        (ropes, cross): (&RopeTables, &mut CrossLayer),
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let _span = span::module(Module::Attention);
        let pass = &stream.pass;
        let d_output = self.end.backward(saved.behind, &branch)?;
        drop(branch);
        let o = || gated(&saved.heads.o, saved.gate.as_ref());
        let out = &self.end.out;
        let d_o = out.backward(o, &saved.output_xa, vec![d_output], pass, true)?;
        drop(saved.output_xa);
        let Some(mut d_o) = d_o else { return Ok(None) };
        let mut d_gate = None;
        if let Some(gate) = saved.gate {
            let (of_o, of_gate) = head_gate::backward(&flat(&saved.heads.o)?, &gate, &d_o)?;
            (d_o, d_gate) = (of_o, Some(of_gate));
        }
        // Not by a new name: the old one would hold it to the end.
        d_o = d_o.reshape(saved.heads.o.shape())?;
        let mut d_projected = match &self.reader {
            Some(reader) => reader.backward(saved.heads, d_o, &self.settings, (stream, ropes), cross)?,
            None => self.backward_heads(saved.heads, d_o, stream, (ropes, cross))?,
        };
        if let (Some(d_gate), Some(d_q)) = (d_gate, d_projected.first_mut()) {
            *d_q = head_gate::join(d_q, &d_gate, self.head_dim)?;
        }
        let normed = || Ok(forward_before(self.norm.as_ref(), &saved.x)?.0);
        let wants_d_normed = wants_dx || self.norm.as_ref().is_some_and(|norm| norm.weight.is_trained());
        let d_normed = self
            .projections
            .backward(normed, &saved.input_xa, d_projected, pass, wants_d_normed)?;
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

    /// The gradients of what the projections gave, from that of what attention gave.
    fn backward_heads(
        &self,
        saved: HeadsSaved,
        d_o: Tensor,
        stream: &Stream<'_>,
        (ropes, cross): (&RopeTables, &mut CrossLayer),
    ) -> Result<Vec<Tensor>> {
        let Some(k) = saved.k else {
            candle_core::bail!("attention: no keys were kept");
        };
        let in_between = [saved.q, k];
        let ([q, k], _) = self.path.again(&in_between, stream, ropes)?;
        let raw_v = saved.v.unwrap_or_else(|| in_between[1].clone());
        let v = self.values(&raw_v)?.0;
        let kept = attention::Saved {
            q: &q,
            k: &k,
            v: &v,
            o: &saved.o,
            lse: &saved.lse,
        };
        let chunks = self.chunks(stream);
        let (d_q, mut d_k, mut d_v) = attention::backward(kept, &d_o, chunks.stays_in(), &self.settings)?;
        drop((d_o, q, k, v, saved.o, saved.lse));
        if let Some(index) = self.shares {
            [d_k, d_v] = cross.with_gradients(index, [d_k, d_v])?;
        }
        let [query_rstd, key_rstd, value_rstd] = saved.rstd;
        let d_v = self.values_backward(&raw_v, value_rstd.as_ref(), d_v)?;
        drop(raw_v);
        if let (Some(latent), Some(saved)) = (&self.latent, saved.latent) {
            drop(in_between);
            return latent.backward(saved, [d_q, d_k, d_v], &self.path, stream, ropes);
        }
        let rstd = [query_rstd, key_rstd];
        let [d_q, d_k] = self.path.backward(in_between, rstd, [d_q, d_k], stream, ropes)?;
        self.of_projections(d_q, d_k, d_v)
    }

    /// Spans that attention stays in: documents, or chunks of them.
    pub(super) fn chunks<'s>(&self, stream: &'s Stream<'_>) -> Chunks<'s> {
        Chunks::new(stream, self.chunk)
    }

    /// Makes what attention reads from the outputs of the projections.
    pub(super) fn attended(
        &self,
        projected: Vec<Tensor>,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        cross: &mut CrossLayer,
    ) -> Result<Attended> {
        if let Some(reader) = &self.reader {
            let both = cross.shared(reader.source)?;
            return reader.attended(projected, self.head_dim, (stream, ropes), both);
        }
        if let Some(latent) = &self.latent {
            return latent.forward(projected, &self.path, stream, ropes);
        }
        let (q, k, kept_v) = self.heads(projected)?;
        let raw_v = kept_v.clone().unwrap_or_else(|| k.clone());
        let Turned {
            both: [q, k],
            kept: [kept_q, kept_k],
            rstd: [query_rstd, key_rstd],
        } = self.path.forward([q, k], stream, ropes)?;
        let (v, value_rstd) = self.values(&raw_v)?;
        if let Some(index) = self.shares {
            cross.share(index, &k, &v);
        }
        Ok(Attended {
            q,
            k,
            v,
            kept_q,
            kept_k: Some(kept_k),
            kept_v,
            rstd: [query_rstd, key_rstd, value_rstd],
            latent: None,
        })
    }

    /// v as attention reads it, and rstd of its norm.
    fn values(&self, v: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        match &self.value_norm {
            Some(norm) => norm.forward_heads(v).map(|(v, rstd)| (v, Some(rstd))),
            None => Ok((v.clone(), None)),
        }
    }

    /// The gradient of v as the projection gave it.
    fn values_backward(&self, v: &Tensor, rstd: Option<&Tensor>, d_v: Tensor) -> Result<Tensor> {
        match (&self.value_norm, rstd) {
            (Some(norm), Some(rstd)) => norm.backward_heads(v, rstd, &d_v),
            _ => Ok(d_v),
        }
    }

    /// The gradients of what the projections give: keys and values that are of one add theirs.
    fn of_projections(&self, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> Result<Vec<Tensor>> {
        match self.projections.adapted.projections.len() {
            2 => Ok(vec![flat(&d_q)?, flat(&residual::add(&d_k, &d_v)?)?]),
            _ => Ok(vec![flat(&d_q)?, flat(&d_k)?, flat(&d_v)?]),
        }
    }

    /// (T, heads·d) of q, k and v to (T, heads, d); no v where that is k.
    fn heads(&self, projected: Vec<Tensor>) -> Result<(Tensor, Tensor, Option<Tensor>)> {
        let split = |tensor: &Tensor| {
            let (tokens, width) = tensor.dims2()?;
            tensor.reshape((tokens, width / self.head_dim, self.head_dim))
        };
        match projected.as_slice() {
            [q, k, v] => Ok((split(q)?, split(k)?, Some(split(v)?))),
            [q, k] => Ok((split(q)?, split(k)?, None)),
            other => candle_core::bail!("attention: {} projections instead of q, k and v", other.len()),
        }
    }
}

/// Input of the output projection, (T, Hq d): attention's result, times the gates where there are any.
pub(super) fn gated(o: &Tensor, gate: Option<&Tensor>) -> Result<Tensor> {
    match gate {
        Some(gate) => head_gate::forward(&flat(o)?, gate),
        None => flat(o),
    }
}
