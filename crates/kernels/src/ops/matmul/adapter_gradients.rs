//! Gradients of an adapter's output side, of B and of xa, from one reading of the gradient of the layer's output.

use candle_core::{DType, Result, Tensor};

use crate::gpu;
use crate::ops::cuda::adapter_gradients::{Gradients, are_taken};
use crate::ops::shape;

/// Operands that [`adapter_gradients`] takes of one projection.
#[derive(Clone, Copy, Debug)]
pub struct AdapterGradients<'a> {
    /// (T, N) and (T, r); columns of wider tensors are read in place.
    pub dy: &'a Tensor,
    pub xa: &'a Tensor,
    /// (N, r)
    pub b: &'a Tensor,
    /// (N, r) F32, added to in place (`+=`).
    pub d_b: &'a Tensor,
    pub scale: f64,
}

/// Whether [`adapter_gradients`] takes these: tensors on a GPU whose kernel reads each dy once. Anywhere else two products are as good.
///
/// # Errors
/// Tensors that are no matrices.
pub fn reads_once(all: &[AdapterGradients<'_>]) -> Result<bool> {
    for one in all {
        let on_gpu = gpu::takes(one.dy) && one.dy.dtype() != DType::F32;
        if !on_gpu || !are_taken([one.dy, one.xa, one.b, one.d_b])? {
            return Ok(false);
        }
    }
    Ok(!all.is_empty())
}

/// Gradients of adapters' output sides: d_xa = scale dy b, and d_b += scale dy^T xa. Returns the d_xa (T, r) side by side in one
/// (T, sum of r) tensor, in the dtype of dy.
///
/// # Errors
/// Shapes that do not fit, what [`reads_once`] does not take, those of the launches.
pub fn adapter_gradients(all: &[AdapterGradients<'_>]) -> Result<Tensor> {
    let Some(first) = all.first() else {
        candle_core::bail!("adapter_gradients: there is no gradient");
    };
    let tokens = first.dy.dims2()?.0;
    let mut ranks = Vec::with_capacity(all.len());
    for one in all {
        let (columns, rank) = one.b.dims2()?;
        shape::expect(one.dy, &[tokens, columns], "adapter_gradients: dy")?;
        shape::expect(one.xa, &[tokens, rank], "adapter_gradients: xa")?;
        shape::expect(one.d_b, &[columns, rank], "adapter_gradients: d_b")?;
        ranks.push(rank);
    }
    if !reads_once(all)? {
        candle_core::bail!(
            "adapter_gradients: no kernel for {:?} on {:?}",
            first.dy.dtype(),
            first.dy.device()
        );
    }
    let beside = gpu::empty(
        (tokens, ranks.iter().sum::<usize>()),
        first.dy.dtype(),
        first.dy.device(),
    )?;
    let mut column = 0;
    for (one, rank) in all.iter().zip(ranks) {
        let gradients = Gradients {
            dy: one.dy,
            xa: one.xa,
            b: one.b,
            d_b: one.d_b,
            scale: one.scale,
            d_xa: &beside.narrow(1, column, rank)?,
        };
        gradients.run()?;
        column += rank;
    }
    Ok(beside)
}
