//! The choice of experts.

use candle_core::{DType, Result};

use super::expert_offsets::{Offsets, PaperOffsets};
use super::passed::{RunOnPaper, over};
use super::{Tensor, bytes, pass};
use crate::span::op;
use crate::tensor::PaperTensor;
use peft_tune_core::plan::Memory;
use peft_tune_core::plan::products::{SORTED_AT_ONCE, most_tiles};
use peft_tune_core::predict::{ExpertRows, MemoryCategory, Pass};
use peft_tune_kernels::ops::routing;
pub(in crate::model) use peft_tune_kernels::ops::routing::{Scores, Settings};

/// The experts of each token; see [`routing::Routing`].
#[derive(Clone, Debug)]
pub(in crate::model) struct Routing {
    pub scores: Tensor,
    pub weights: Tensor,
    pub tokens: Tensor,
    pub rows: Tensor,
    pub offsets: Offsets,
}

/// See [`routing::forward`].
pub(in crate::model) fn forward(
    logits: &Tensor,
    correction: Option<&candle_core::Tensor>,
    settings: &Settings,
) -> Result<Routing> {
    let _span = op("route", || pass(logits, 2));
    if let Some(paper) = logits.paper() {
        over(logits, Pass::Copy).run_on(paper);
        return on_paper(paper, settings.chosen);
    }
    let routing::Routing {
        scores,
        weights,
        tokens,
        rows,
        offsets,
    } = routing::forward(logits.real()?, correction, settings)?;
    Ok(Routing {
        scores: scores.into(),
        weights: weights.into(),
        tokens: tokens.into(),
        rows: rows.into(),
        offsets: Offsets::Real(offsets),
    })
}

/// See [`routing::backward`].
pub(in crate::model) fn backward(routing: &Routing, d_weights: &Tensor, settings: &Settings) -> Result<Tensor> {
    let _span = op("route_backward", || pass(&routing.scores, 2));
    if let Some(paper) = routing.scores.paper() {
        over(&routing.scores, Pass::Copy).run_on(paper);
        return Ok(paper.alike().into());
    }
    let of = routing::Routing {
        scores: routing.scores.real()?.clone(),
        weights: routing.weights.real()?.clone(),
        tokens: routing.tokens.real()?.clone(),
        rows: routing.rows.real()?.clone(),
        offsets: routing.offsets.real()?.clone(),
    };
    Ok(routing::backward(&of, d_weights.real()?, settings)?.into())
}

/// Choices as the ledger's load has them; beside them lies what they are sorted with.
fn on_paper(logits: &PaperTensor, chosen: usize) -> Result<Routing> {
    let ((tokens, experts), ledger) = (logits.shape().dims2()?, logits.ledger());
    let of_experts = ExpertRows::new(ledger.load(), experts, tokens, chosen);
    let of_rows = |dtype| Tensor::from(logits.fresh(of_experts.rows, dtype));
    let (weights, of_tokens) = (of_rows(DType::F32), of_rows(DType::U32));
    let on_gpu = ledger.host().memory() == Memory::Device;
    let table = experts + 1 + 2 * most_tiles(experts, of_experts.rows);
    let routing = Routing {
        scores: logits.alike().into(),
        rows: logits.fresh((tokens, chosen), DType::U32).into(),
        offsets: Offsets::Paper(PaperOffsets {
            table: on_gpu.then(|| logits.fresh(table, DType::U32).into()),
            of_experts,
        }),
        weights,
        tokens: of_tokens,
    };
    let choices = bytes(&routing.tokens);
    let sorted = match on_gpu {
        true => 2 * choices + 4 * (routing.tokens.elem_count().div_ceil(SORTED_AT_ONCE) * experts) as u64,
        false => choices,
    };
    ledger.spike(MemoryCategory::Scratch, sorted);
    Ok(routing)
}
