//! The ops as the model calls them: each in a span that says what it computes and moves.
//!
//! The names and arguments are those of [`peft_tune_kernels::ops`]. FLOPs count matrix products only, two for a
//! multiply-add; bytes are those of the operands and results as they are stored, each once.
//!
//! Ops take and make tensors that may be on paper. There an op makes what has the shape of its result, and tells the ledger what it takes
//! besides, and what it computes. One without such a form refuses.

pub(super) mod attention;
pub(super) mod cached_attention;
pub(super) mod delta_rule;
pub(super) mod grouped;
mod kernel;
pub(super) mod loss_head;
pub(super) mod matmul;
mod passed;
mod pointwise;
pub(super) mod routing;

pub(super) use pointwise::{
    bias, centre, clamped_glu, convolution, dropout, embedding, expert_parts, gain, gated_norm, glu, head_gate,
    latent_heads, merged_rows, own_columns, residual, rms_norm, rope, rounding, rows, sinks, xielu,
};

use candle_core::DType;

use crate::span::{Shape, Work};
use crate::tensor::Tensor;
use kernel::Measured;

/// A parameter of the model, which is candle's on paper too.
type Parameter = candle_core::Tensor;

/// Bytes of a tensor's elements.
fn bytes(tensor: &impl Measured) -> u64 {
    let elements: usize = tensor.sizes().iter().product();
    (elements * tensor.element().size_in_bytes()) as u64
}

/// Name of a dtype as spans have it.
fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::F64 => "f64",
        _ => "",
    }
}

/// An op without products that reads and writes `tensors` tensors like `x`.
fn pass(x: &impl Measured, tensors: u64) -> Work {
    Work {
        bytes: tensors * bytes(x),
        storage: storage(x.element()),
        shape: Shape::with_tokens(x.sizes(), 0),
        ..Work::default()
    }
}

/// Opens a span around the quantization of `rows` (rows, in) F32.
pub(super) fn quantize(rows: &candle_core::Tensor) -> crate::span::Span {
    crate::span::op("quantize", || pass(rows, 1))
}

/// Opens a span around a sum over the tokens of `tensor`.
pub(super) fn column_sum(tensor: &Tensor) -> crate::span::Span {
    crate::span::op("column_sum", || pass(tensor, 1))
}
