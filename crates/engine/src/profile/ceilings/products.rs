//! Products: base weights by storage, adapters and gradients.

use candle_core::{DType, Device, Result, Tensor};

use super::clock::{Effort, seconds};
use super::{grid, operand};
use crate::TrainError;
use crate::base::{Weight, WeightKind, compute_dtype};
use peft_tune_core::predict::{Grid, WeightProducts};
use peft_tune_core::recipe::{ActivationQuantization, Precision};
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::Term;

/// Rows, and widths of weights, that are measured; beyond them time grows with the size.
const ROWS: [usize; 3] = [32, 128, 512];
const WIDTHS: [usize; 3] = [64, 256, 1024];
const RANKS: [usize; 3] = [4, 16, 64];

/// How a weight is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    AsStored,
    /// Product with activations in 8 bits.
    InBytes,
    /// Product with two of each four values of the weight left out.
    Sparse,
}

/// Products with weights (columns, depth) and (depth, columns) as `precision` stores them.
pub(super) fn weights(
    precision: Precision,
    form: Form,
    effort: Effort,
) -> std::result::Result<WeightProducts, TrainError> {
    let rows = effort.points(&ROWS);
    let widths = effort.points(&WIDTHS);
    let mut stored = Vec::new();
    for outputs in &widths {
        for inputs in &widths {
            let value = operand(&[*outputs, *inputs], DType::F32)?;
            let weight = Weight::store(value, "ceiling", WeightKind::Linear, precision, &Device::Cpu)?;
            stored.push(match form {
                Form::AsStored => weight,
                Form::InBytes => weight.with_activations(ActivationQuantization::Int8Both),
                Form::Sparse => weight.sparsified("ceiling", DType::F32, None)?,
            });
        }
    }
    let weight = |outputs: usize, inputs: usize| {
        let place = |width| widths.iter().position(|one| *one == width).unwrap_or(0);
        &stored[place(outputs) * widths.len() + place(inputs)]
    };
    let axes = [rows.as_slice(), &widths, &widths];
    let nt = grid(axes, |[rows, columns, depth]| {
        let x = operand(&[rows, depth], compute_dtype(precision))?;
        let terms = [Term::new(&x, weight(columns, depth).factor(), 1.0)];
        seconds(effort, || matmul::nt_sum(&terms).map(drop))
    })?;
    let nn = grid(axes, |[rows, columns, depth]| {
        let x = operand(&[rows, depth], compute_dtype(precision))?;
        let terms = [Term::new(&x, weight(depth, columns).factor(), 1.0)];
        seconds(effort, || matmul::nn_sum(&terms).map(drop))
    })?;
    Ok(WeightProducts { nt, nn })
}

/// x A^T (rows, rank, width), dy B (the same), dA (rank, width, tokens) and dB (the same), A and B in F32.
pub(super) fn adapters(dtype: DType, effort: Effort) -> Result<[Grid; 4]> {
    let rows = effort.points(&ROWS);
    let (ranks, widths) = (effort.points(&RANKS), effort.points(&WIDTHS));
    let axes = [rows.as_slice(), &ranks, &widths];
    let nt = grid(axes, |[rows, rank, width]| {
        let (x, a) = (operand(&[rows, width], dtype)?, operand(&[rank, width], DType::F32)?);
        seconds(effort, || matmul::nt(&x, &a).map(drop))
    })?;
    let nn = grid(axes, |[rows, rank, width]| {
        let (dy, b) = (operand(&[rows, width], dtype)?, operand(&[width, rank], DType::F32)?);
        seconds(effort, || matmul::nn(&dy, &b).map(drop))
    })?;
    let axes = [ranks.as_slice(), &widths, &rows];
    let gradient = |[left, right]: [usize; 2], tokens: usize| {
        let (a, b) = (operand(&[tokens, left], dtype)?, operand(&[tokens, right], dtype)?);
        let into = Tensor::zeros((left, right), DType::F32, &Device::Cpu)?;
        seconds(effort, || matmul::tn_add(&a, &b, 1.0, &into))
    };
    let a = grid(axes, |[rank, width, tokens]| gradient([rank, width], tokens))?;
    let b = grid(axes, |[rank, width, tokens]| gradient([width, rank], tokens))?;
    Ok([nt, nn, a, b])
}
