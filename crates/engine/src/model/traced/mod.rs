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
mod documents;
pub(super) mod expert_offsets;
pub(super) mod grouped;
mod kernel;
pub(super) mod loss_head;
pub(super) mod matmul;
mod passed;
mod pointwise;
mod product_call;
mod product_work;
mod products_on_paper;
pub(super) mod routing;
mod row_norms;
pub(super) mod sigmoid;
mod terms;

pub(super) use documents::Documents;
pub(super) use pointwise::{
    bias, centre, clamped_glu, convolution, dropout, embedding, expert_parts, gain, gated_norm, glu, head_gate,
    latent_heads, merged_rows, own_columns, residual, rms_norm, rope, rounding, rows, sinks, xielu,
};
pub(super) use row_norms::NormParts;

use candle_core::{DType, Result};

use crate::base::Weight;
use crate::span::{Shape, Work, op};
use crate::tensor::Tensor;
use kernel::Measured;
use passed::{RunOnPaper, over};
use peft_tune_core::plan::merged_bytes;
use peft_tune_core::predict::{MemoryCategory, Pass};
use peft_tune_core::recipe::QuantizationAware;

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

/// Quantizes `rows` (rows, in) F32 in place of those of the codes from `start` on, in their form; see [`Weight::replace_rows`].
pub(super) fn quantize(rows: &Tensor, codes: &Weight, form: QuantizationAware, start: usize) -> Result<()> {
    let _span = op("quantize", || pass(rows, 1));
    let Some(paper) = rows.paper() else {
        return codes.replace_rows(start, rows.real()?);
    };
    over(rows, Pass::Copy).run_on(paper);
    let (outputs, inputs) = rows.dims2()?;
    // The rows are read, and the codes then take the place of the old ones.
    let codes = merged_bytes([outputs, inputs], form);
    let room = bytes(rows) + codes.values + codes.constants;
    paper.ledger().spike(MemoryCategory::Scratch, room);
    Ok(())
}

/// Opens a span around a sum over the tokens of `tensor`.
pub(super) fn column_sum(tensor: &Tensor) -> crate::span::Span {
    op("column_sum", || pass(tensor, 1))
}
