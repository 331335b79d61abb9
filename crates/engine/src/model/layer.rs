//! One decoder layer.

use candle_core::{Result, Tensor};

use super::attention_block::AttentionBlock;
use super::linear::LinearGroup;
use super::mlp_block::MlpBlock;
use super::saved::LayerSaved;
use super::{RopeTables, Stream};

/// Attention, then MLP, on the residual stream.
#[derive(Debug)]
pub(super) struct Layer {
    pub attention: AttentionBlock,
    pub mlp: MlpBlock,
}

impl Layer {
    /// Its groups of linear layers.
    pub(super) fn groups(&self) -> [&LinearGroup; 4] {
        let (attention, mlp) = (&self.attention, &self.mlp);
        [&attention.projections, &attention.output, &mlp.projections, &mlp.down]
    }

    /// The stream behind the layer, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>, ropes: &RopeTables) -> Result<(Tensor, LayerSaved)> {
        let (x, attention) = self.attention.forward(x, stream, ropes)?;
        let (x, mlp) = self.mlp.forward(&x, stream)?;
        Ok((x, LayerSaved { attention, mlp }))
    }

    /// What [`Layer::forward`] keeps, from the same input and to the same bits, without the layer's output.
    pub(super) fn recompute(&self, x: &Tensor, stream: &Stream<'_>, ropes: &RopeTables) -> Result<LayerSaved> {
        let (x, attention) = self.attention.forward(x, stream, ropes)?;
        let mlp = self.mlp.recompute(&x, stream)?;
        Ok(LayerSaved { attention, mlp })
    }

    /// The gradient with respect to the layer's input, where `wants_dx`; adds all gradients of the layer.
    pub(super) fn backward(
        &self,
        saved: LayerSaved,
        dy: Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let between = || self.attention.recompute_output(&saved.attention, stream);
        let dy = self.mlp.backward(saved.mlp, between, dy, stream)?;
        self.attention.backward(saved.attention, dy, stream, ropes, wants_dx)
    }
}
