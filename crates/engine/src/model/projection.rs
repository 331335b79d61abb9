//! One projection of a group: weight, bias, and the output side of its adapter.
//!
//! The formulas are those of the group and of [`super::dora`].

use candle_core::Result;

use super::dora::{Dora, FrozenWeight};
use super::group_input::{AdapterInput, GroupInput};
use super::matrix::Matrix;
use super::merged_weight::{MergedWeight, Update};
use super::parameter::{BaseParameter, Trained, column_sum};
use super::traced::matmul::{self, Adapted, AdapterGradients, Factor, Term};
use super::traced::{bias, gain, residual};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;
use peft_tune_core::predict::Right;

/// One projection of a group.
#[derive(Clone, Debug)]
pub(super) struct Projection {
    /// The linear layer inside the decoder layer that it belongs to.
    pub module: &'static str,
    pub weight: Matrix,
    /// Storage of the weight as prediction tells storages apart.
    pub right: Right,
    pub bias: Option<BaseParameter>,
    pub adapter: Option<AdapterOutput>,
    /// Weight that is multiplied in place of the base's and its adapter, where their sum is quantized in each pass.
    pub merged: Option<MergedWeight>,
}

/// The output side of an adapter.
#[derive(Clone, Debug)]
pub(super) struct AdapterOutput {
    /// Index of the adapter in its group.
    pub input: usize,
    /// (out, r)
    pub b: Trained,
    /// (out,)
    pub bias: Option<Trained>,
    pub dora: Option<Dora>,
    pub scaling: f64,
}

/// The gradient of a projection's output as its parts see it, (T, out) each.
pub(super) struct OutputGradients {
    /// Gradient of x W^T.
    pub base: Tensor,
    /// Gradient of drop(x) W^T, which only DoRA with dropout has.
    pub dropped_base: Option<Tensor>,
    /// Gradient of s·xa B^T.
    pub update: Tensor,
}

impl OutputGradients {
    fn plain(dy: Tensor) -> Self {
        Self {
            base: dy.clone(),
            dropped_base: None,
            update: dy,
        }
    }
}

impl AdapterOutput {
    /// s·xa B^T
    pub(super) fn update<'a>(&'a self, xa: &'a Tensor) -> Term<'a> {
        Term::of_adapter(xa, &self.b.factor, self.scaling)
    }

    /// s·dy B, what dy says of xa.
    pub(super) fn update_gradient<'a>(&'a self, dy: &'a Tensor) -> Term<'a> {
        Term::of_adapter(dy, &self.b.factor, self.scaling)
    }
}

impl AdapterOutput {
    /// dB += s·dy^T xa
    pub(super) fn add_gradient(&self, xa: &Tensor, dy: &Tensor) -> Result<()> {
        matmul::tn_add(dy, xa, self.scaling, &self.b.gradient)
    }

    /// Terms from which the gradients of B and of xa are made.
    pub(super) fn gradients<'a>(&'a self, xa: &'a Tensor, dy: &'a Tensor) -> AdapterGradients<'a> {
        AdapterGradients {
            dy,
            xa,
            b: &self.b.factor,
            d_b: &self.b.gradient,
            scale: self.scaling,
        }
    }
}

impl Projection {
    /// Computes what DoRA needs of the parameters as they are now, and the codes of the merged weight; on paper where `ids` are.
    pub(super) fn refresh(&self, adapters: &[AdapterInput], ids: &Tensor) -> Result<()> {
        let Some(adapter) = &self.adapter else { return Ok(()) };
        if let Some(merged) = &self.merged {
            let _span = span::module(Module::Adapters);
            let update = Update {
                a: &adapters[adapter.input].a.value,
                b: &adapter.b.value,
                scaling: adapter.scaling,
            };
            return merged.refresh(&self.weight, Some(update), |rows| ids.operand(rows));
        }
        let Some(dora) = &adapter.dora else { return Ok(()) };
        let a = &adapters[adapter.input].a;
        let _span = span::module(Module::Adapters);
        let unrounded = self.weight.unrounded();
        let weight = FrozenWeight {
            factor: unrounded.factor(),
            right: self.right,
        };
        dora.refresh(weight, (a, &adapter.b.value), adapter.scaling, ids)
    }

    /// x W^T or dy W, beside the adapter where that is not in W.
    pub(super) fn base<'a>(&'a self, x: &'a Tensor) -> Term<'a> {
        let factor = match &self.merged {
            Some(merged) => merged.factor(),
            None => self.weight.factor(),
        };
        Term::new(x, factor, 1.0).stored(self.right)
    }

    /// x W^T or dy W of the weight without its adapter.
    pub(super) fn frozen<'a>(&'a self, x: &'a Tensor) -> Term<'a> {
        Term::new(x, self.weight.factor(), 1.0).stored(self.right)
    }

    /// y (T, out), from the group's input and its xa; added to `onto` where there is one.
    pub(super) fn forward(&self, input: &GroupInput<'_>, xa: &[Tensor], onto: Option<&Tensor>) -> Result<Tensor> {
        let base = self.base(input.x);
        let product = |terms: &[Term<'_>]| match onto {
            Some(onto) => matmul::nt_onto(onto, terms, 1),
            None => matmul::nt_sum(terms, 1),
        };
        let Some(adapter) = &self.adapter else {
            return self.biased(product(&[base])?);
        };
        if self.merged.is_some() {
            return self.with_biases(product(&[base])?);
        }
        let xa = &xa[adapter.input];
        let y = match (&adapter.dora, onto) {
            (Some(dora), None) => self.turned(base, xa, adapter, dora, input)?,
            (Some(dora), Some(onto)) => residual::add(onto, &self.turned(base, xa, adapter, dora, input)?)?,
            (None, _) => product(&[base, adapter.update(xa)])?,
        };
        self.with_biases(y)
    }

    /// The weight and the adapter for a product that takes both, where the adapter is a plain one of a quantized weight; `columns` say
    /// where the xa of each adapter begin.
    pub(super) fn adapted(&self, columns: &[usize]) -> Option<Adapted<'_>> {
        let adapter = self.adapter.as_ref().filter(|adapter| adapter.dora.is_none())?;
        let Factor::QuantizedMatrix(w) = self.weight.factor() else {
            return None;
        };
        Some(Adapted {
            w,
            b: &adapter.b.factor,
            column: columns[adapter.input],
            scale: adapter.scaling,
        })
    }

    /// y plus the biases of the adapter and of the projection, in place.
    pub(super) fn with_biases(&self, y: Tensor) -> Result<Tensor> {
        if let Some((adapter, bias)) = self
            .adapter
            .as_ref()
            .and_then(|adapter| Some((adapter, adapter.bias.as_ref()?)))
        {
            bias::add(&y, &bias.value, adapter.scaling)?;
        }
        self.biased(y)
    }

    /// y + bias, in place.
    pub(super) fn biased(&self, y: Tensor) -> Result<Tensor> {
        if let Some(bias) = &self.bias {
            bias::add(&y, bias.value(), 1.0)?;
        }
        Ok(y)
    }

    /// Adds the gradients of the adapter's bias, the magnitude, W and the bias; returns dy for the products.
    pub(super) fn backward(&self, input: &GroupInput<'_>, xa: &[Tensor], dy: Tensor) -> Result<OutputGradients> {
        self.add_bias_gradient(&dy)?;
        let gradients = match &self.adapter {
            Some(adapter) => self.backward_adapter(input, &xa[adapter.input], dy, adapter)?,
            None => OutputGradients::plain(dy),
        };
        if let Some(weight) = self.weight.trained() {
            matmul::tn_add(&gradients.base, input.x, 1.0, &weight.gradient)?;
        }
        Ok(gradients)
    }

    pub(super) fn add_bias_gradient(&self, dy: &Tensor) -> Result<()> {
        match self.bias.as_ref().and_then(BaseParameter::trained) {
            Some(bias) => bias.add_gradient(&column_sum(dy)?),
            None => Ok(()),
        }
    }

    fn backward_adapter(
        &self,
        input: &GroupInput<'_>,
        xa: &Tensor,
        dy: Tensor,
        adapter: &AdapterOutput,
    ) -> Result<OutputGradients> {
        let gradients = match &adapter.dora {
            Some(dora) => self.backward_turned(input, xa, dy, adapter, dora)?,
            None => OutputGradients::plain(dy),
        };
        if let Some(bias) = &adapter.bias {
            let _span = span::module(Module::Adapters);
            bias.add_gradient(&column_sum(&gradients.update)?.affine(adapter.scaling, 0.0)?)?;
        }
        Ok(gradients)
    }

    /// DoRA's output g ⊙ (x W^T + s·xa B^T); `base` is x W^T.
    fn turned(
        &self,
        base: Term<'_>,
        xa: &Tensor,
        adapter: &AdapterOutput,
        dora: &Dora,
        input: &GroupInput<'_>,
    ) -> Result<Tensor> {
        if input.pass.dropout.is_none() {
            let y = matmul::nt_sum(&[base, adapter.update(xa)], 1)?;
            gain::scale(&y, &dora.gain, 0.0)?;
            return Ok(y);
        }
        // With dropout PEFT takes x W^T + (g - 1) ⊙ drop(x) W^T + g ⊙ update.
        let more = {
            let dropped = self.dropped_product(input, adapter)?;
            gain::scale(&dropped, &dora.gain, -1.0)?;
            let update = matmul::nt_sum(&[adapter.update(xa)], 0)?;
            gain::scale(&update, &dora.gain, 0.0)?;
            residual::add(&dropped, &update)?
        };
        matmul::nt_onto(&more, &[base], 1)
    }

    /// drop(x) W^T
    fn dropped_product(&self, input: &GroupInput<'_>, adapter: &AdapterOutput) -> Result<Tensor> {
        let dropped = input.dropped(adapter.input)?;
        matmul::nt_sum(&[self.frozen(&dropped)], 0)
    }

    /// Adds the magnitude's gradient and passes dy through the gain.
    fn backward_turned(
        &self,
        input: &GroupInput<'_>,
        xa: &Tensor,
        dy: Tensor,
        adapter: &AdapterOutput,
        dora: &Dora,
    ) -> Result<OutputGradients> {
        let _span = span::module(Module::Adapters);
        // The output before the gain is made again: keeping it would double what the layer saves.
        let before = {
            let dropped = input.dropped(adapter.input)?;
            matmul::nt_sum(&[self.frozen(&dropped), adapter.update(xa)], 1)?
        };
        gain::backward(&dy, &before, &dora.gain, &dora.norm, &dora.magnitude.gradient)?;
        let update = before;
        if input.pass.dropout.is_none() {
            return Ok(OutputGradients::plain(update));
        }
        let dropped_base = dy.copy()?;
        gain::scale(&dropped_base, &dora.gain, -1.0)?;
        Ok(OutputGradients {
            dropped_base: Some(dropped_base),
            base: dy,
            update,
        })
    }
}
