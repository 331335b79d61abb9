//! Attention, with the pairs of query and key that its mask leaves.

use candle_core::{DType, Result};

use super::{Documents, Tensor, bytes, storage};
use crate::span::{Shape, Work, op};
use crate::tensor::PaperTensor;
use peft_tune_core::plan::Vectors;
use peft_tune_core::plan::attention::{AttentionCall, Heads};
use peft_tune_core::predict::{self, MemoryCategory};
use peft_tune_kernels::ops::attention;
pub(in crate::model) use peft_tune_kernels::ops::attention::Settings;

/// Spans that attention stays in.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct StaysIn<'a> {
    /// Documents, or the chunks that they are cut into.
    pub documents: Documents<'a>,
    /// Most tokens of a chunk, where documents are cut.
    pub chunk: Option<usize>,
}

/// Tensors that the forward took and gave, for [`backward`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Saved<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    pub o: &'a Tensor,
    pub lse: &'a Tensor,
}

impl<'a> Saved<'a> {
    fn kernel(&self) -> Result<attention::Saved<'a>> {
        Ok(attention::Saved {
            q: self.q.real()?,
            k: self.k.real()?,
            v: self.v.real()?,
            o: self.o.real()?,
            lse: self.lse.real()?,
        })
    }
}

/// Returns (o, lse); see [`attention::forward`].
pub(in crate::model) fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    stays: StaysIn<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let _span = op("attention", || Work {
        flops: flops([q, k, v], stays, settings, false),
        bytes: bytes(q) + result_bytes(q, v) + bytes(k) + bytes(v) + lse_bytes(q),
        ..described(q)
    });
    if let Some(paper) = q.paper() {
        return forward_on_paper(paper, [q, k, v], stays, settings);
    }
    let (o, lse) = attention::forward(q.real()?, k.real()?, v.real()?, stays.documents.real()?, settings)?;
    Ok((o.into(), lse.into()))
}

/// Gradients with respect to (q, k, v); see [`attention::backward`].
pub(in crate::model) fn backward(
    saved: Saved<'_>,
    d_o: &Tensor,
    stays: StaysIn<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let _span = op("attention_backward", || Work {
        flops: flops([saved.q, saved.k, saved.v], stays, settings, true),
        // q·k.
        recomputed_flops: (2.0 * row(saved.q) as f64 * pairs(stays.documents, settings.window)) as u64,
        bytes: 2 * (bytes(saved.q) + bytes(saved.o) + bytes(saved.k) + bytes(saved.v)) + lse_bytes(saved.q),
        ..described(saved.q)
    });
    if let Some(paper) = saved.q.paper() {
        return backward_on_paper(paper, &saved, stays, settings);
    }
    let (d_q, d_k, d_v) = attention::backward(saved.kernel()?, d_o.real()?, stays.documents.real()?, settings)?;
    Ok((d_q.into(), d_k.into(), d_v.into()))
}

fn forward_on_paper(
    paper: &PaperTensor,
    [q, k, v]: [&Tensor; 3],
    stays: StaysIn<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let ((tokens, _, _), heads) = (q.dims3()?, heads([q, k, v])?);
    let o = paper.fresh((tokens, heads.query, heads.value), q.dtype());
    let lse = paper.fresh((tokens, heads.query), DType::F32);
    paper.ledger().run(work(heads, stays, settings, false), 1.0);
    let call = call_on_paper(paper, q, stays, settings, false);
    paper.ledger().threads(|kept| heads.keep(kept, call));
    Ok((o.into(), lse.into()))
}

fn backward_on_paper(
    paper: &PaperTensor,
    saved: &Saved<'_>,
    stays: StaysIn<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let heads = heads([saved.q, saved.k, saved.v])?;
    let like = |of: &Tensor| Tensor::from(paper.fresh(of.shape().clone(), of.dtype()));
    let gradients = (like(saved.q), like(saved.k), like(saved.v));
    let (ledger, workspace) = (paper.ledger(), MemoryCategory::AttentionWorkspace);
    ledger.run(work(heads, stays, settings, true), 1.0);
    let call = call_on_paper(paper, saved.q, stays, settings, true);
    if call.vectors == Vectors::None {
        // The sum of o d_o over each head.
        ledger.spike(workspace, lse_bytes(saved.q));
        return Ok(gradients);
    }
    let shares = |tokens| heads.shares(tokens, settings.window) as f64;
    ledger.holding(workspace, stays.documents.sum(shares) as u64, || {
        ledger.threads(|kept| heads.keep(kept, call));
        ledger.spike(workspace, heads.backward_room(call, ledger.host().threads));
    });
    Ok(gradients)
}

fn heads([q, k, v]: [&Tensor; 3]) -> Result<Heads> {
    let ((_, query, width), (_, key, _), (_, _, value)) = (q.dims3()?, k.dims3()?, v.dims3()?);
    Ok(Heads {
        query,
        key,
        width,
        value,
    })
}

fn call_on_paper(
    paper: &PaperTensor,
    q: &Tensor,
    stays: StaysIn<'_>,
    settings: &Settings,
    backward: bool,
) -> AttentionCall {
    let vectors = paper.ledger().host().vectors;
    AttentionCall {
        longest: stays.documents.longest(),
        window: settings.window,
        backward,
        pairs: q.dtype() == DType::BF16 && vectors.multiplies_pairs(),
        vectors,
    }
}

/// Work of a pass, as predictions see it.
fn work(heads: Heads, stays: StaysIn<'_>, settings: &Settings, backward: bool) -> predict::Work {
    predict::Work::Attention {
        heads,
        window: settings.window,
        chunk: stays.chunk,
        backward,
    }
}

fn flops(all: [&Tensor; 3], stays: StaysIn<'_>, settings: &Settings, backward: bool) -> u64 {
    // The op itself says what is wrong with the shapes.
    let of_pair = heads(all).map_or(0.0, |heads| heads.pair_flops(backward));
    (of_pair * pairs(stays.documents, settings.window)) as u64
}

/// Elements of a token.
fn row(q: &Tensor) -> u64 {
    q.dims().iter().skip(1).product::<usize>() as u64
}

fn result_bytes(q: &Tensor, v: &Tensor) -> u64 {
    let (Ok((tokens, heads, _)), Ok((_, _, width))) = (q.dims3(), v.dims3()) else {
        return 0;
    };
    (tokens * heads * width * q.dtype().size_in_bytes()) as u64
}

/// Pairs of a query and a key that it sees: itself, and those before it in its document and window.
fn pairs(documents: Documents<'_>, window: Option<usize>) -> f64 {
    documents.sum(|length| {
        let window = window.map_or(length, |window| length.min(window));
        // Queries within the window's first length see a triangle, those after it see a whole window each.
        (window * (window + 1) / 2 + (length - window) * window) as f64
    })
}

fn described(q: &Tensor) -> Work {
    Work {
        storage: storage(q.dtype()),
        shape: Shape::with_tokens(q.dims(), 0),
        ..Work::default()
    }
}

fn lse_bytes(q: &Tensor) -> u64 {
    q.dims3().map_or(0, |(tokens, heads, _)| 4 * (tokens * heads) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_that_the_mask_leaves() {
        let counted = |length: u32, window: Option<usize>| {
            let visible =
                |query: u32| (0..=query).filter(move |key| window.is_none_or(|w| ((query - key) as usize) < w));
            (0..length).map(|query| visible(query).count()).sum::<usize>() as f64
        };
        for window in [None, Some(1), Some(3), Some(7), Some(100)] {
            let expected = counted(7, window) + counted(4, window);
            assert_eq!(pairs([0, 7, 11].as_slice().into(), window), expected, "{window:?}");
        }
    }
}
