//! Sizes of products, as far as time, scratch and work depend on them.

use candle_core::{DType, Result};

use super::kernel::Measured;
use super::terms::Term;
use crate::tensor::PaperTensor;
use peft_tune_core::plan::Form;
use peft_tune_core::plan::products::Call;
use peft_tune_kernels::ops::matmul::Factor;

/// Order of the operands in memory.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// w is (N, K), the result (T, N).
    Transposed,
    /// w is (N, K), the result (T, K).
    Straight,
}

/// A sum as far as its scratch depends on it.
pub(super) fn sum_call(terms: &[Term<'_>], order: Order, base: usize) -> Result<Call> {
    let (mut depths, mut longest) = ([0; 2], 0);
    for (place, term) in terms.iter().enumerate() {
        let depth = term.x.dims2()?.1;
        // Without a weight's product those of adapters are the sum.
        let of_adapter = usize::from(base > 0 && place >= base);
        depths[of_adapter] += depth;
        if of_adapter == 0 {
            longest = longest.max(depth);
        }
    }
    let Some(first) = terms.first() else {
        candle_core::bail!("a sum of no products");
    };
    let (rows, columns) = first.w.dims2()?;
    let (form, columns) = match order {
        Order::Transposed => (Form::Nt, rows),
        Order::Straight => (Form::Nn, columns),
    };
    let converted = terms.iter().map(|term| match term.w {
        Factor::Dense(w) if w.dtype() != term.x.dtype() => w.elem_count(),
        Factor::Dense(_) | Factor::QuantizedMatrix(_) => 0,
    });
    let beside = terms.iter().filter_map(|term| term.x.paper()).map(PaperTensor::beside);
    Ok(Call {
        adapter_depth: depths[1],
        longest_term: longest,
        beside: beside.max().unwrap_or(0),
        quantized: matches!(first.w, Factor::QuantizedMatrix(_)),
        in_bytes: in_bytes(&first.w, order),
        converted: converted.max().unwrap_or(0),
        ..plain_call(first.x, form, [first.x.dims2()?.0, columns, depths[0]])
    })
}

/// A product of dense operands, x the left one.
pub(super) fn plain_call(x: &impl Measured, form: Form, sizes: [usize; 3]) -> Call {
    let dtype = x.element();
    Call::dense(form, sizes, dtype.size_in_bytes() as u64, dtype == DType::BF16)
}

/// Whether products of a weight take their activations in 8 bits.
pub(super) fn in_bytes(factor: &Factor<'_>, order: Order) -> bool {
    let Factor::QuantizedMatrix(quantized) = factor else {
        return false;
    };
    let row = quantized.activations().row();
    match order {
        Order::Transposed => row.forward,
        Order::Straight => row.backward,
    }
}
