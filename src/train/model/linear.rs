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
use super::dora::Dora;
use super::matrix::Matrix;
use super::parameter::{BaseParameter, Trained, column_sum};
use crate::train::ops::{matmul, residual};

/// Projections of one input.
#[derive(Debug)]
pub(super) struct LinearGroup {
    pub projections: Vec<Projection>,
    pub adapters: Vec<AdapterInput>,
    /// All A below each other, where they are neighbours in the flat buffer.
    pub stacked: Option<Trained>,
}

/// One projection of a group.
#[derive(Debug)]
pub(super) struct Projection {
    pub weight: Matrix,
    pub bias: Option<BaseParameter>,
    pub adapter: Option<AdapterOutput>,
}

/// The input side of an adapter.
#[derive(Debug)]
pub(super) struct AdapterInput {
    /// (r, in)
    pub a: Trained,
    /// Number of the adapter in the model; tells its dropout masks from the others'.
    pub number: u64,
}

/// The output side of an adapter.
#[derive(Debug)]
pub(super) struct AdapterOutput {
    /// Index into [`LinearGroup::adapters`].
    pub input: usize,
    /// (out, r)
    pub b: Trained,
    /// (out,)
    pub bias: Option<Trained>,
    pub dora: Option<Dora>,
    pub scaling: f64,
}

impl LinearGroup {
    /// The outputs (T, out) of all projections, and xa of all adapters.
    pub(super) fn forward(&self, x: &Tensor, dropout: Option<&DropoutKey>) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let xa = self.adapter_products(x, dropout)?;
        let outputs = self
            .projections
            .iter()
            .map(|projection| projection.forward(x, &xa, &self.adapters, dropout))
            .collect::<Result<_>>()?;
        Ok((outputs, xa))
    }

    /// Adds the gradients of all that trains here and returns dx where `wants_dx`.
    ///
    /// `x` and `xa` are those of the forward pass, `dys` the gradients of its outputs.
    pub(super) fn backward(
        &self,
        x: &Tensor,
        xa: &[Tensor],
        dys: Vec<Tensor>,
        dropout: Option<&DropoutKey>,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let mut dx = None;
        let mut d_xa: Vec<Option<Tensor>> = vec![None; self.adapters.len()];
        for (projection, dy) in self.projections.iter().zip(dys) {
            let dy = projection.add_gradients(x, xa, dy, &self.adapters, dropout)?;
            if let Some(adapter) = &projection.adapter {
                let product = (matmul::nn(&dy.adapter, &adapter.b.value)? * adapter.scaling)?;
                accumulate(&mut d_xa[adapter.input], product)?;
            }
            if wants_dx {
                accumulate(&mut dx, projection.weight.nn(&dy.weight)?)?;
                if let Some(dropped) = &dy.dropped_weight {
                    let product = projection.weight.nn(dropped)?;
                    let number = projection.adapter.as_ref().map_or(0, |a| self.adapters[a.input].number);
                    accumulate(&mut dx, dropped_back(&product, dropout, number)?)?;
                }
            }
        }
        self.backward_adapters(x, d_xa, dropout, wants_dx.then_some(&mut dx))?;
        Ok(dx)
    }

    /// x A^T of every adapter, (T, r) each.
    fn adapter_products(&self, x: &Tensor, dropout: Option<&DropoutKey>) -> Result<Vec<Tensor>> {
        let Some(stacked) = self.stacked.as_ref().filter(|_| dropout.is_none()) else {
            let product = |adapter: &AdapterInput| matmul::nt(&adapter.dropped(x, dropout)?, &adapter.a.value);
            return self.adapters.iter().map(product).collect();
        };
        let all = matmul::nt(x, &stacked.value)?;
        let mut column = 0;
        let mut split = |adapter: &AdapterInput| {
            let rank = adapter.a.value.dims2()?.0;
            column += rank;
            all.narrow(1, column - rank, rank)?.contiguous()
        };
        self.adapters.iter().map(&mut split).collect()
    }

    /// Adds the gradients of all A and, where wanted, what reaches x through them.
    fn backward_adapters(
        &self,
        x: &Tensor,
        d_xa: Vec<Option<Tensor>>,
        dropout: Option<&DropoutKey>,
        mut dx: Option<&mut Option<Tensor>>,
    ) -> Result<()> {
        let d_xa: Vec<Tensor> = d_xa.into_iter().flatten().collect();
        if let Some(stacked) = self.stacked.as_ref().filter(|_| dropout.is_none()) {
            let all = Tensor::cat(&d_xa, 1)?;
            matmul::tn_add(&all, x, 1.0, &stacked.gradient)?;
            return match dx {
                Some(dx) => accumulate(dx, matmul::nn(&all, &stacked.value)?),
                None => Ok(()),
            };
        }
        for (adapter, d_xa) in self.adapters.iter().zip(&d_xa) {
            matmul::tn_add(d_xa, &adapter.dropped(x, dropout)?, 1.0, &adapter.a.gradient)?;
            if let Some(dx) = dx.as_mut() {
                let product = matmul::nn(d_xa, &adapter.a.value)?;
                accumulate(dx, dropped_back(&product, dropout, adapter.number)?)?;
            }
        }
        Ok(())
    }
}

/// The gradient of a projection's output as its parts see it.
struct OutputGradients {
    /// For W on x.
    weight: Tensor,
    /// For W on drop(x), which only DoRA with dropout has.
    dropped_weight: Option<Tensor>,
    /// For s·xa B^T.
    adapter: Tensor,
}

impl Projection {
    fn forward(
        &self,
        x: &Tensor,
        xa: &[Tensor],
        adapters: &[AdapterInput],
        dropout: Option<&DropoutKey>,
    ) -> Result<Tensor> {
        let mut y = self.weight.nt(x)?;
        if let Some(adapter) = &self.adapter {
            let mut update = (matmul::nt(&xa[adapter.input], &adapter.b.value)? * adapter.scaling)?;
            if let Some(bias) = &adapter.bias {
                update = update.broadcast_add(&(&bias.value * adapter.scaling)?.to_dtype(update.dtype())?)?;
            }
            y = match &adapter.dora {
                None => residual::add(&y, &update)?,
                Some(dora) => {
                    let input = &adapters[adapter.input];
                    let factors = dora.factors(&self.weight.dense()?, &input.a.value, &adapter.b.value, adapter.scaling)?;
                    let gain = factors.gain.to_dtype(y.dtype())?;
                    let update = update.broadcast_mul(&gain)?;
                    let turned = match dropout {
                        None => y.broadcast_mul(&gain)?,
                        // PEFT takes the base product of drop(x) for the change, that of x for the rest.
                        Some(_) => {
                            let dropped = self.weight.nt(&input.dropped(x, dropout)?)?;
                            (y + dropped.broadcast_mul(&(gain - 1.0)?)?)?
                        }
                    };
                    (turned + update)?
                }
            };
        }
        match &self.bias {
            Some(bias) => y.broadcast_add(&bias.to_dtype(y.dtype())?),
            None => Ok(y),
        }
    }

    /// Adds the gradients of what trains on the output side and of W; returns the gradient for the products.
    fn add_gradients(
        &self,
        x: &Tensor,
        xa: &[Tensor],
        dy: Tensor,
        adapters: &[AdapterInput],
        dropout: Option<&DropoutKey>,
    ) -> Result<OutputGradients> {
        if let Some(bias) = self.bias.as_ref().and_then(BaseParameter::trained) {
            bias.add_gradient(&column_sum(&dy)?)?;
        }
        let mut gradients = OutputGradients {
            weight: dy.clone(),
            dropped_weight: None,
            adapter: dy,
        };
        if let Some(adapter) = &self.adapter {
            if adapter.dora.is_some() {
                gradients = self.dora_gradients(x, xa, gradients.weight, adapters, dropout)?;
            }
            matmul::tn_add(&gradients.adapter, &xa[adapter.input], adapter.scaling, &adapter.b.gradient)?;
            if let Some(bias) = &adapter.bias {
                bias.add_gradient(&(column_sum(&gradients.adapter)? * adapter.scaling)?)?;
            }
        }
        if let Some(weight) = self.weight.trained() {
            matmul::tn_add(&gradients.weight, x, 1.0, &weight.gradient)?;
        }
        Ok(gradients)
    }

    /// Adds the magnitude's gradient and passes dy through the gain.
    fn dora_gradients(
        &self,
        x: &Tensor,
        xa: &[Tensor],
        dy: Tensor,
        adapters: &[AdapterInput],
        dropout: Option<&DropoutKey>,
    ) -> Result<OutputGradients> {
        let Some((adapter, dora)) = self.adapter.as_ref().and_then(|a| a.dora.as_ref().map(|dora| (a, dora))) else {
            return Ok(OutputGradients {
                weight: dy.clone(),
                dropped_weight: None,
                adapter: dy,
            });
        };
        let input = &adapters[adapter.input];
        let factors = dora.factors(&self.weight.dense()?, &input.a.value, &adapter.b.value, adapter.scaling)?;
        // The turned output before the gain is made again: keeping it would cost as much as the activations.
        let base = self.weight.nt(&input.dropped(x, dropout)?)?;
        let update = (matmul::nt(&xa[adapter.input], &adapter.b.value)? * adapter.scaling)?;
        let along = column_sum(&(&dy * (base + update)?)?)?;
        dora.magnitude.add_gradient(&(along / &factors.norm)?)?;
        let gain = factors.gain.to_dtype(dy.dtype())?;
        let turned = dy.broadcast_mul(&gain)?;
        Ok(match dropout {
            None => OutputGradients {
                weight: turned.clone(),
                dropped_weight: None,
                adapter: turned,
            },
            Some(_) => OutputGradients {
                dropped_weight: Some(dy.broadcast_mul(&(gain - 1.0)?)?),
                weight: dy,
                adapter: turned,
            },
        })
    }
}

impl AdapterInput {
    /// What A is multiplied with.
    fn dropped(&self, x: &Tensor, dropout: Option<&DropoutKey>) -> Result<Tensor> {
        dropped_back(x, dropout, self.number)
    }
}

/// Dropout of adapter `number`; the same for a gradient as for the input.
fn dropped_back(x: &Tensor, dropout: Option<&DropoutKey>, number: u64) -> Result<Tensor> {
    match dropout {
        Some(key) => key.apply(x, number),
        None => Ok(x.clone()),
    }
}

fn accumulate(sum: &mut Option<Tensor>, term: Tensor) -> Result<()> {
    *sum = Some(match sum.take() {
        Some(sum) => residual::add(&sum, &term)?,
        None => term,
    });
    Ok(())
}
