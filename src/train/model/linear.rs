//! Linear layers that read the same input, with their adapters.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | x | (T, in) | the input that all projections of the group share |
//! | W, bias | (out, in), (out,) | a projection's weight, frozen or trained |
//! | A, B | (r, in), (out, r) | its adapter, F32 |
//! | xa | (T, r) | x A^T, saved for the gradient of B |
//! | s | | scaling |
//!
//! y = x W^T + bias + s·(xa B^T + bias_B). Backward: dB += s·dy^T xa, d_xa = s·dy B, dA += d_xa^T x, and
//! dx = dy W + d_xa A. With dropout, A sees drop(x); with DoRA see [`super::dora`].
//!
//! q, k and v (or gate and up) are one group: x is read for all of them, and where their A lie side by side in the flat
//! buffer, they are one (sum of r, in) matrix and one product. A fused tensor (`qkv_proj`) is a group whose projections
//! are row ranges of it and share one A.

use candle_core::{Result, Tensor};

use super::DropoutKey;
use super::parameter::Trained;
use super::projection::Projection;
use crate::train::ops::matmul;

/// Projections of one input.
#[derive(Debug)]
pub(super) struct LinearGroup {
    pub projections: Vec<Projection>,
    pub adapters: Vec<AdapterInput>,
    /// All A below each other, where they are neighbours in the flat buffer.
    pub stacked: Option<Trained>,
}

/// The input side of an adapter.
#[derive(Debug)]
pub(super) struct AdapterInput {
    /// (r, in)
    pub a: Trained,
    /// Number of the adapter in the model; tells its dropout masks from the others'.
    pub number: u64,
}

/// The input of a group in one pass, with its dropout.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupInput<'a> {
    pub x: &'a Tensor,
    pub adapters: &'a [AdapterInput],
    pub dropout: Option<&'a DropoutKey>,
}

impl GroupInput<'_> {
    /// What adapter `index` is multiplied with.
    pub(super) fn dropped(&self, index: usize) -> Result<Tensor> {
        self.adapters[index].drop(self.x, self.dropout)
    }
}

impl AdapterInput {
    /// Dropout of this adapter, of its input or of a gradient with respect to it.
    fn drop(&self, x: &Tensor, dropout: Option<&DropoutKey>) -> Result<Tensor> {
        match dropout {
            Some(key) => key.apply(x, self.number),
            None => Ok(x.clone()),
        }
    }
}

impl LinearGroup {
    /// The outputs (T, out) of all projections, and xa of all adapters.
    pub(super) fn forward(&self, x: &Tensor, dropout: Option<&DropoutKey>) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let input = self.input(x, dropout);
        let xa = self.adapter_products(&input)?;
        let outputs = self
            .projections
            .iter()
            .map(|projection| projection.forward(&input, &xa));
        Ok((outputs.collect::<Result<_>>()?, xa))
    }

    /// Whether backward needs the group's input: where something of it trains.
    fn reads_input(&self) -> bool {
        !self.adapters.is_empty() || self.projections.iter().any(|projection| projection.weight.is_trained())
    }

    /// Adds the gradients of all that trains here and returns dx where `wants_dx`.
    ///
    /// `x` makes the input of the forward pass again and is called only where it is needed; `xa` is that pass's, and
    /// `dys` are the gradients of its outputs.
    pub(super) fn backward(
        &self,
        x: impl FnOnce() -> Result<Tensor>,
        xa: &[Tensor],
        dys: Vec<Tensor>,
        dropout: Option<&DropoutKey>,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        if !self.reads_input() {
            return self.backward_frozen(dys, wants_dx);
        }
        let x = x()?;
        let input = self.input(&x, dropout);
        let mut dx = None;
        let mut d_xa: Vec<Option<Tensor>> = vec![None; self.adapters.len()];
        for (projection, dy) in self.projections.iter().zip(dys) {
            let dy = projection.backward(&input, xa, dy)?;
            if let Some(adapter) = &projection.adapter {
                let scaled = (matmul::nn(&dy.update, &adapter.b.value)? * adapter.scaling)?;
                let sum = &mut d_xa[adapter.input];
                *sum = Some(match sum.take() {
                    Some(sum) => (sum + scaled)?,
                    None => scaled,
                });
            }
            if wants_dx {
                projection.weight.add_nn(&dy.base, &mut dx)?;
                if let (Some(dropped), Some(adapter)) = (&dy.dropped_base, &projection.adapter) {
                    let product = projection.weight.nn(dropped)?;
                    add(&mut dx, self.adapters[adapter.input].drop(&product, dropout)?)?;
                }
            }
        }
        self.backward_adapters(
            &input,
            d_xa.into_iter().flatten().collect(),
            wants_dx.then_some(&mut dx),
        )?;
        Ok(dx)
    }

    fn backward_frozen(&self, dys: Vec<Tensor>, wants_dx: bool) -> Result<Option<Tensor>> {
        let mut dx = None;
        for (projection, dy) in self.projections.iter().zip(dys) {
            projection.add_bias_gradient(&dy)?;
            if wants_dx {
                projection.weight.add_nn(&dy, &mut dx)?;
            }
        }
        Ok(dx)
    }

    /// x A^T of every adapter, (T, r) each.
    fn adapter_products(&self, input: &GroupInput<'_>) -> Result<Vec<Tensor>> {
        let Some(stacked) = self.stacked.as_ref().filter(|_| input.dropout.is_none()) else {
            let product =
                |(index, adapter): (usize, &AdapterInput)| matmul::nt(&input.dropped(index)?, &adapter.a.value);
            return self.adapters.iter().enumerate().map(product).collect();
        };
        let all = matmul::nt(input.x, &stacked.value)?;
        let mut column = 0;
        let split = |adapter: &AdapterInput| {
            let rank = adapter.a.value.dims2()?.0;
            column += rank;
            all.narrow(1, column - rank, rank)?.contiguous()
        };
        self.adapters.iter().map(split).collect()
    }

    /// Adds the gradients of all A and, where wanted, what reaches x through them.
    fn backward_adapters(
        &self,
        input: &GroupInput<'_>,
        d_xa: Vec<Tensor>,
        mut dx: Option<&mut Option<Tensor>>,
    ) -> Result<()> {
        if let Some(stacked) = self.stacked.as_ref().filter(|_| input.dropout.is_none()) {
            let all = Tensor::cat(&d_xa, 1)?;
            matmul::tn_add(&all, input.x, 1.0, &stacked.gradient)?;
            return match dx {
                Some(Some(dx)) => matmul::nn_add(&all, &stacked.value, 1.0, dx),
                _ => Ok(()),
            };
        }
        for (index, (adapter, d_xa)) in self.adapters.iter().zip(&d_xa).enumerate() {
            matmul::tn_add(d_xa, &input.dropped(index)?, 1.0, &adapter.a.gradient)?;
            let Some(dx) = dx.as_mut() else { continue };
            match (input.dropout, dx.as_ref()) {
                (None, Some(dx)) => matmul::nn_add(d_xa, &adapter.a.value, 1.0, dx)?,
                _ => {
                    let product = matmul::nn(d_xa, &adapter.a.value)?;
                    add(dx, adapter.drop(&product, input.dropout)?)?;
                }
            }
        }
        Ok(())
    }

    fn input<'a>(&'a self, x: &'a Tensor, dropout: Option<&'a DropoutKey>) -> GroupInput<'a> {
        GroupInput {
            x,
            adapters: &self.adapters,
            dropout,
        }
    }
}

fn add(sum: &mut Option<Tensor>, term: Tensor) -> Result<()> {
    *sum = Some(match sum.take() {
        Some(sum) => (sum + term)?,
        None => term,
    });
    Ok(())
}
