//! One decoder layer.

use candle_core::{Result, Tensor};

use super::attention_block::BlockGradients;
use super::feed_forward::FeedForward;
use super::linear::LinearGroup;
use super::mixer::MixerBlock;
use super::saved::LayerSaved;
use super::{RopeTables, Stream};

/// Attention or what stands in its place, then an MLP or experts, on the residual stream.
#[derive(Debug)]
pub(super) struct Layer {
    pub mixer: MixerBlock,
    pub mlp: FeedForward,
    pub order: BlockOrder,
}

/// What the MLP reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockOrder {
    /// The stream behind attention.
    InTurn,
    /// What attention reads: both add to the same stream.
    SideBySide,
}

impl Layer {
    /// Its groups of linear layers.
    pub(super) fn groups(&self) -> Vec<&LinearGroup> {
        let mut groups = self.mixer.groups();
        groups.extend(self.mlp.groups());
        groups
    }

    /// The stream behind the layer, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>, ropes: &RopeTables) -> Result<(Tensor, LayerSaved)> {
        let (between, mixer) = self.mixer.forward(x, stream, ropes)?;
        let (y, mut mlp) = self.mlp.forward(self.input_of_mlp(x, &between), &between, stream)?;
        self.release_input(mlp.input());
        Ok((y, LayerSaved { mixer, mlp }))
    }

    /// What [`Layer::forward`] keeps, from the same input and to the same bits, without the layer's output.
    pub(super) fn recompute(&self, x: &Tensor, stream: &Stream<'_>, ropes: &RopeTables) -> Result<LayerSaved> {
        let (between, mixer) = self.mixer.forward(x, stream, ropes)?;
        let mut mlp = self.mlp.recompute(self.input_of_mlp(x, &between), stream)?;
        self.release_input(mlp.input());
        Ok(LayerSaved { mixer, mlp })
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
        let LayerSaved { mixer, mlp } = saved;
        let gradients = match self.order {
            BlockOrder::InTurn => {
                let between = || self.mixer.recompute_output(&mixer, stream);
                let dy = self.mlp.backward(mlp, between, dy, stream)?;
                BlockGradients {
                    branch: dy.clone(),
                    past: dy,
                }
            }
            BlockOrder::SideBySide => {
                let input = || Ok(mixer.x().clone());
                let past = self.mlp.backward(mlp, input, dy.clone(), stream)?;
                BlockGradients { branch: dy, past }
            }
        };
        self.mixer.backward(mixer, gradients, stream, ropes, wants_dx)
    }

    /// What the MLP reads of the layer's input and the stream behind attention.
    pub(super) fn input_of_mlp<'a>(&self, x: &'a Tensor, between: &'a Tensor) -> &'a Tensor {
        match self.order {
            BlockOrder::InTurn => between,
            BlockOrder::SideBySide => x,
        }
    }

    /// Lets go of the MLP's input where attention keeps the same.
    fn release_input(&self, x: &mut Option<Tensor>) {
        if self.order == BlockOrder::SideBySide {
            *x = None;
        }
    }
}
