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

<<<<<<< HEAD
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
                    let factors =
                        dora.factors(&self.weight.dense()?, &input.a.value, &adapter.b.value, adapter.scaling)?;
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
            matmul::tn_add(
                &gradients.adapter,
                &xa[adapter.input],
                adapter.scaling,
                &adapter.b.gradient,
            )?;
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
        let Some((adapter, dora)) = self
            .adapter
            .as_ref()
            .and_then(|a| a.dora.as_ref().map(|dora| (a, dora)))
        else {
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
=======
    fn input<'a>(&'a self, x: &'a Tensor, dropout: Option<&'a DropoutKey>) -> GroupInput<'a> {
        GroupInput {
            x,
            adapters: &self.adapters,
            dropout,
        }
>>>>>>> engine
    }
}

fn add(sum: &mut Option<Tensor>, term: Tensor) -> Result<()> {
    *sum = Some(match sum.take() {
        Some(sum) => (sum + term)?,
        None => term,
    });
    Ok(())
}
