//! The loss head: products with the head, chunk by chunk or group by group.

use candle_core::{DType, Result};

use super::{Tensor, bytes, storage};
use crate::span;
use crate::span::{Module, Shape, StepPhase, Work, op};
use crate::tensor::{Ledger, PaperTensor};
use peft_tune_core::plan::products::Call;
use peft_tune_core::plan::{HeadCall, Memory, STREAMED_ROWS};
use peft_tune_core::predict::{self, MemoryCategory, Pass, Product, Right};
use peft_tune_kernels::ops::loss_head;
pub(in crate::model) use peft_tune_kernels::ops::loss_head::Settings;
use peft_tune_kernels::ops::loss_head::{IGNORE, Sums};

/// Targets that every position must predict.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) enum Targets<'a> {
    Real(loss_head::Targets<'a>),
    /// Number of positions that count in the loss, on paper.
    Paper(usize),
}

impl<'a> Targets<'a> {
    fn real(self) -> Result<loss_head::Targets<'a>> {
        match self {
            Self::Real(targets) => Ok(targets),
            Self::Paper(_) => candle_core::bail!("targets on paper have no values"),
        }
    }

    /// Positions that count in the loss.
    fn counted(self) -> usize {
        match self {
            Self::Real(targets) => targets.values.iter().filter(|target| **target != IGNORE).count(),
            Self::Paper(counted) => counted,
        }
    }
}

/// Loss of one micro-batch; see [`loss_head::Output`].
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub sums: Sums,
    /// (T, H), `None` without a gradient scale.
    pub d_hidden: Option<Tensor>,
}

impl From<loss_head::Output> for Output {
    fn from(output: loss_head::Output) -> Self {
        Self {
            sums: output.sums,
            d_hidden: output.d_hidden.map(Tensor::from),
        }
    }
}

/// Loss and, with a gradient scale, the gradient of `hidden`; see [`loss_head::forward`].
pub(in crate::model) fn forward(
    hidden: &Tensor,
    weight: &candle_core::Tensor,
    targets: Targets<'_>,
    settings: &Settings,
) -> Result<Output> {
    let products = if settings.gradient_scale.is_some() { 2 } else { 1 };
    let chunk = match hidden.memory() {
        Memory::Device => settings.chunk_tokens,
        Memory::Host => STREAMED_ROWS,
    };
    let _span = op("loss_head", || work(hidden, weight, targets, chunk, products));
    if let Some(paper) = hidden.paper() {
        return on_paper(paper, weight, targets, false);
    }
    Ok(loss_head::forward(hidden.real()?, weight, targets.real()?, settings)?.into())
}

/// Computes what [`forward`] does, and adds the head's gradient; see [`loss_head::forward_with_weight_gradient`].
pub(in crate::model) fn forward_with_weight_gradient(
    hidden: &Tensor,
    weight: &candle_core::Tensor,
    targets: Targets<'_>,
    settings: &Settings,
    weight_gradient: &candle_core::Tensor,
) -> Result<Output> {
    let _span = op("loss_head", || work(hidden, weight, targets, settings.chunk_tokens, 3));
    if let Some(paper) = hidden.paper() {
        return on_paper(paper, weight, targets, true);
    }
    let (hidden, targets) = (hidden.real()?, targets.real()?);
    let output = loss_head::forward_with_weight_gradient(hidden, weight, targets, settings, weight_gradient)?;
    Ok(output.into())
}

/// Output of a training on paper, with the gradient of `hidden`.
fn on_paper(
    hidden: &PaperTensor,
    weight: &candle_core::Tensor,
    targets: Targets<'_>,
    head_trains: bool,
) -> Result<Output> {
    let (ledger, (vocabulary, width)) = (hidden.ledger(), weight.dims2()?);
    let d_hidden = Tensor::from(hidden.alike());
    let host = ledger.host();
    let call = HeadCall {
        tokens: d_hidden.dim(0)?,
        targets: targets.counted().max(1),
        hidden: width,
        vocabulary,
        element_bytes: d_hidden.dtype().size_in_bytes() as u64,
        bf16: d_hidden.dtype() == DType::BF16,
        head_trains,
        vectors: host.vectors,
        device_bytes: host.device_bytes,
    };
    let logits = call.logits();
    let of_logits = || {
        ledger.spike(MemoryCategory::Logits, logits.growing);
        for (rows, blocks) in call.blocks(&logits) {
            let products = call.products(rows, logits.columns);
            for product in &products {
                ledger.threads(|kept| product.keep(kept, host.vectors, host.threads));
                ledger.spike(MemoryCategory::Scratch, product.spike(host.vectors));
            }
            run_on_paper(
                ledger,
                &products,
                blocks as f64 * (vocabulary as f64 / logits.columns as f64),
            );
        }
    };
    // A GPU has the head in the dtype of the hidden states.
    let is_converted = host.memory() == Memory::Device && weight.dtype() != d_hidden.dtype();
    let converted = if is_converted { weight.elem_count() as u64 } else { 0 };
    ledger.holding(MemoryCategory::Scratch, converted * call.element_bytes, || {
        ledger.holding(MemoryCategory::Logits, logits.bytes, of_logits);
    });
    Ok(Output {
        sums: Sums::NONE,
        d_hidden: Some(d_hidden),
    })
}

/// Tells the ledger of the products of so many blocks of logits: the logits, whose losses are taken, and what is made of their gradients.
fn run_on_paper(ledger: &Ledger, products: &[Call], times: f64) {
    let run = |call: &Call| {
        let product = Product::new(call, Module::Head, Right::Dense);
        ledger.run(predict::Work::Product(product), times);
    };
    let Some((logits, gradients)) = products.split_first() else {
        return;
    };
    run(logits);
    let losses = predict::Work::Pass {
        pass: Pass::CrossEntropy,
        elements: logits.rows as f64 * logits.columns as f64,
    };
    ledger.run(losses, times);
    let _span = span::phase(StepPhase::Backward);
    gradients.iter().for_each(run);
}

/// Each product reads the head once for every `chunk` of targets; the logits themselves are written and read by each.
fn work(hidden: &Tensor, weight: &candle_core::Tensor, targets: Targets<'_>, chunk: usize, products: u64) -> Work {
    let Ok((vocabulary, width)) = weight.dims2() else {
        return Work::default();
    };
    let rows = targets.counted();
    let chunks = rows.div_ceil(chunk.max(1)) as u64;
    Work {
        flops: products * 2 * (rows * vocabulary * width) as u64,
        bytes: 2 * bytes(hidden) + products * (chunks * bytes(weight) + 4 * (rows * vocabulary) as u64),
        storage: storage(weight.dtype()),
        shape: Shape::with_tokens(&[rows, vocabulary, width], 0),
        ..Work::default()
    }
}
