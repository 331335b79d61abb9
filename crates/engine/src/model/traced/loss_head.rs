//! The loss head: products with the head, chunk by chunk or group by group.

use candle_core::{Result, Tensor};

use super::{bytes, storage};
use crate::span::{Shape, Work, op};
use peft_tune_core::plan::STREAMED_ROWS;
use peft_tune_kernels::ops::loss_head;
use peft_tune_kernels::ops::loss_head::IGNORE;
pub(in crate::model) use peft_tune_kernels::ops::loss_head::{Output, Settings, Targets};

/// Loss and, with a gradient scale, the gradient of `hidden`; see [`loss_head::forward`].
pub(in crate::model) fn forward(
    hidden: &Tensor,
    weight: &Tensor,
    targets: Targets<'_>,
    settings: &Settings,
) -> Result<Output> {
    let products = if settings.gradient_scale.is_some() { 2 } else { 1 };
    let chunk = match weight.device().is_cuda() {
        true => settings.chunk_tokens,
        false => STREAMED_ROWS,
    };
    let _span = op("loss_head", || work(hidden, weight, targets.values, chunk, products));
    loss_head::forward(hidden, weight, targets, settings)
}

/// As [`forward`], with the head's gradient; see [`loss_head::forward_with_weight_gradient`].
pub(in crate::model) fn forward_with_weight_gradient(
    hidden: &Tensor,
    weight: &Tensor,
    targets: Targets<'_>,
    settings: &Settings,
    weight_gradient: &Tensor,
) -> Result<Output> {
    let _span = op("loss_head", || {
        work(hidden, weight, targets.values, settings.chunk_tokens, 3)
    });
    loss_head::forward_with_weight_gradient(hidden, weight, targets, settings, weight_gradient)
}

/// Each product reads the head once for every `chunk` of targets; the logits themselves are written and read by each.
fn work(hidden: &Tensor, weight: &Tensor, targets: &[i64], chunk: usize, products: u64) -> Work {
    let Ok((vocabulary, width)) = weight.dims2() else {
        return Work::default();
    };
    let rows = targets.iter().filter(|target| **target != IGNORE).count();
    let chunks = rows.div_ceil(chunk.max(1)) as u64;
    Work {
        flops: products * 2 * (rows * vocabulary * width) as u64,
        bytes: 2 * bytes(hidden) + products * (chunks * bytes(weight) + 4 * (rows * vocabulary) as u64),
        storage: storage(weight.dtype()),
        shape: Shape::with_tokens(&[rows, vocabulary, width], 0),
        ..Work::default()
    }
}
