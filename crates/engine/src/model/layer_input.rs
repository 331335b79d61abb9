//! The inputs that layers have beside the stream (Gemma 4 E2B and E4B): what makes them, and what a layer does with its own.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | h | (T, H) | the stream behind the layer's MLP |
//! | x_l | (T, P) | the layer's input: columns l P to (l + 1) P of all |
//! | e, p | (T, L·P) | rows of the table, and what embedded tokens give |
//!
//! x = (p + sqrt(P) e) / sqrt(2), p = norm(W h_0 / sqrt(H)) over each layer's part; h + norm(projection(act(gate(h)) x_l)).

use candle_core::Result;

use super::block_end::BlockEnd;
use super::cross_layer::CrossLayer;
use super::linear::{LinearGroup, expect_gradient};
use super::norm::Norm;
use super::parameter::BaseParameter;
use super::saved::InputSaved;
use super::traced::{embedding, glu, residual};
use super::{AdapterPass, Stream};
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// Modules for a layer's own input.
#[derive(Debug)]
pub(super) struct LayerInput {
    pub gate: LinearGroup,
    pub activation: glu::Activation,
    pub end: BlockEnd,
    /// First of its columns.
    pub first: usize,
    /// P
    pub width: usize,
}

impl LayerInput {
    /// The stream behind it, (T, H), and what backward needs.
    pub(super) fn forward(&self, h: &Tensor, stream: &Stream<'_>, cross: &CrossLayer) -> Result<(Tensor, InputSaved)> {
        let _span = span::module(Module::Mlp);
        let pass = &stream.pass;
        let (mut gates, gate_xa) = self.gate.forward(h, pass)?;
        let Some(gate) = gates.pop() else {
            candle_core::bail!("a layer's own input has no gate");
        };
        let input = cross.input(self.first, self.width)?;
        let inner = glu::forward(&gate, &input, self.activation)?;
        drop(input);
        let (y, projection_xa, behind) = self.end.forward(h, &inner, pass)?;
        let saved = InputSaved {
            x: self.gate.reads_input().then(|| h.clone()),
            gate,
            gate_xa,
            projection_xa,
            behind,
        };
        Ok((y, saved))
    }

    /// The gradient of the stream before it; adds all gradients, and keeps that of the input where it is wanted.
    pub(super) fn backward(
        &self,
        saved: InputSaved,
        dy: Tensor,
        stream: &Stream<'_>,
        cross: &CrossLayer,
    ) -> Result<Tensor> {
        let _span = span::module(Module::Mlp);
        let pass = &stream.pass;
        let d_projected = self.end.backward(saved.behind, &dy)?;
        let input = cross.input(self.first, self.width)?;
        let inner = || glu::forward(&saved.gate, &input, self.activation);
        let out = &self.end.out;
        let d_inner = out.backward(inner, &saved.projection_xa, vec![d_projected], pass, true)?;
        drop(saved.projection_xa);
        let (d_gate, d_input) = glu::backward(saved.gate, &input, expect_gradient(d_inner)?, self.activation)?;
        drop(input);
        cross.set_input_gradient(self.first, &d_input)?;
        drop(d_input);
        let h = || {
            let x = saved.x.clone();
            x.ok_or_else(|| candle_core::Error::Msg("the stream before a layer's own input was not kept".into()))
        };
        let dx = self.gate.backward(h, &saved.gate_xa, vec![d_gate], pass, true)?;
        residual::add(&dy, &expect_gradient(dx)?)
    }
}

/// Modules that make the inputs of all layers.
#[derive(Debug)]
pub(super) struct LayerInputs {
    /// (V', L·P)
    pub table: BaseParameter,
    pub projection: LinearGroup,
    /// Norm over P.
    pub norm: Norm,
    /// H
    pub hidden: usize,
    /// P
    pub width: usize,
    /// Whether something that makes them trains, embedded tokens among it.
    pub trains: bool,
}

/// Output of the projection on the way to the inputs.
struct Projected {
    /// (T·L, P), what the norm reads.
    x: Tensor,
    normed: Tensor,
    rstd: Tensor,
    xa: Vec<Tensor>,
}

impl LayerInputs {
    /// The inputs (T, L·P) of tokens whose embedding is `embedded`, (T, H).
    pub(super) fn forward(&self, ids: &Tensor, embedded: &Tensor, pass: &AdapterPass) -> Result<Tensor> {
        let _span = span::module(Module::Embedding);
        let normed = self.project(embedded, pass)?.normed;
        let rows = embedding::forward(self.table.value(), ids)?.to_dtype(embedded.dtype())?;
        let scaled = residual::scale(&rows, self.table_scale())?;
        drop(rows);
        let sum = residual::add(&normed.reshape(scaled.shape())?, &scaled)?;
        drop((normed, scaled));
        residual::scale(&sum, 0.5f64.sqrt())
    }

    /// Adds the gradients of all that makes the inputs, from theirs; the gradient of the embedded tokens, where it is wanted.
    pub(super) fn backward(
        &self,
        gradients: Tensor,
        (ids, embedded): (&Tensor, Tensor),
        pass: &AdapterPass,
        wants_d_embedded: bool,
    ) -> Result<Option<Tensor>> {
        let _span = span::module(Module::Embedding);
        let d_sum = residual::scale(&gradients, 0.5f64.sqrt())?;
        drop(gradients);
        if let Some(table) = self.table.trained() {
            embedding::backward_add(&residual::scale(&d_sum, self.table_scale())?, ids, &table.gradient)?;
        }
        if !wants_d_embedded && !self.norm.weight.is_trained() && !self.projection.reads_input() {
            return Ok(None);
        }
        let Projected { x, normed, rstd, xa } = self.project(&embedded, pass)?;
        drop(normed);
        let d_x = self.norm.backward(&x, &rstd, &d_sum.reshape(x.shape())?)?;
        drop((x, d_sum));
        let d_projected = residual::scale(&d_x, self.projection_scale())?.reshape((embedded.dim(0)?, ()))?;
        drop(d_x);
        self.projection
            .backward(|| Ok(embedded), &xa, vec![d_projected], pass, wants_d_embedded)
    }

    fn project(&self, embedded: &Tensor, pass: &AdapterPass) -> Result<Projected> {
        let (mut outputs, xa) = self.projection.forward(embedded, pass)?;
        let Some(output) = outputs.pop() else {
            candle_core::bail!("no projection makes the layers' inputs");
        };
        let x = residual::scale(&output, self.projection_scale())?;
        drop(output);
        let x = x.reshape(((), self.width))?;
        let (normed, rstd) = self.norm.forward(&x)?;
        Ok(Projected { x, normed, rstd, xa })
    }

    fn table_scale(&self) -> f64 {
        (self.width as f64).sqrt()
    }

    fn projection_scale(&self) -> f64 {
        (self.hidden as f64).powf(-0.5)
    }
}
