//! One decoder layer.

use candle_core::Result;

use super::block_gradients::BlockGradients;
use super::cross_layer::CrossLayer;
use super::feed_forward::FeedForward;
use super::layer_input::LayerInput;
use super::linear::LinearGroup;
use super::mixer::MixerBlock;
use super::saved::{InputSaved, LayerSaved};
use super::traced::residual;
use super::{RopeTables, Stream};
use crate::tensor::Tensor;

/// Attention or what stands in its place, then an MLP or experts, on the residual stream.
#[derive(Debug)]
pub(super) struct Layer {
    pub mixer: MixerBlock,
    pub mlp: FeedForward,
    /// Work on an input of the layer's own beside the stream.
    pub input: Option<LayerInput>,
    pub order: BlockOrder,
    /// Factor on the layer's output.
    pub scale: Option<f64>,
}

/// Input of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockOrder {
    /// The stream behind attention.
    InTurn,
    /// Input of attention: both add to the same stream.
    SideBySide,
}

impl Layer {
    /// Groups of linear layers in the layer.
    pub(super) fn groups(&self) -> Vec<&LinearGroup> {
        let mut groups = self.mixer.groups();
        groups.extend(self.mlp.groups());
        groups.extend(self.input.iter().flat_map(|input| [&input.gate, &input.end.out]));
        groups
    }

    /// Groups of linear layers in the mixer and the MLP, to be changed, in the order of [`Layer::groups`].
    pub(super) fn groups_mut(&mut self) -> Vec<&mut LinearGroup> {
        let mut groups = self.mixer.groups_mut();
        if let FeedForward::Mlp(mlp) = &mut self.mlp {
            groups.extend([&mut mlp.projections, &mut mlp.end.out]);
        }
        groups
    }

    /// Computes what the layer's adapters need of the parameters as they are now; before each pass, on paper where `ids` are.
    pub(super) fn refresh(&self, ids: &Tensor) -> Result<()> {
        self.groups().into_iter().try_for_each(|group| group.refresh(ids))
    }

    /// The stream behind the layer, (T, H), and what backward needs.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        cross: &mut CrossLayer,
    ) -> Result<(Tensor, LayerSaved)> {
        let (between, mixer) = self.mixer.forward(x, stream, ropes, cross)?;
        let (y, mut mlp) = self.mlp.forward(self.input_of_mlp(x, &between), &between, stream)?;
        self.release_input(mlp.input());
        drop(between);
        let (y, input) = self.with_input(y, stream, cross)?;
        let y = self.scaled(y)?;
        Ok((y, LayerSaved { mixer, mlp, input }))
    }

    /// What [`Layer::forward`] keeps, from the same input and to the same bits, without the layer's output.
    pub(super) fn recompute(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        cross: &mut CrossLayer,
    ) -> Result<LayerSaved> {
        if self.input.is_some() {
            return Ok(self.forward(x, stream, ropes, cross)?.1);
        }
        let (between, mixer) = self.mixer.forward(x, stream, ropes, cross)?;
        let mut mlp = self.mlp.recompute(self.input_of_mlp(x, &between), stream)?;
        self.release_input(mlp.input());
        Ok(LayerSaved {
            mixer,
            mlp,
            input: None,
        })
    }

    /// The gradient with respect to the layer's input, where `wants_dx`; adds all gradients of the layer.
    pub(super) fn backward(
        &self,
        saved: LayerSaved,
        dy: Tensor,
        stream: &Stream<'_>,
        (ropes, cross): (&RopeTables, &mut CrossLayer),
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let LayerSaved { mixer, mlp, input } = saved;
        let mut dy = self.scaled(dy)?;
        if let (Some(of_layer), Some(saved)) = (&self.input, input) {
            dy = of_layer.backward(saved, dy, stream, cross)?;
        }
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
        self.mixer.backward(mixer, gradients, stream, (ropes, cross), wants_dx)
    }

    /// The stream behind what the layer does with its own input, and what that keeps.
    pub(super) fn with_input(
        &self,
        y: Tensor,
        stream: &Stream<'_>,
        cross: &CrossLayer,
    ) -> Result<(Tensor, Option<InputSaved>)> {
        match &self.input {
            Some(input) => input.forward(&y, stream, cross).map(|(y, saved)| (y, Some(saved))),
            None => Ok((y, None)),
        }
    }

    /// The layer's output, or its gradient, times the layer's factor.
    pub(super) fn scaled(&self, y: Tensor) -> Result<Tensor> {
        match self.scale {
            Some(scale) => residual::scale(&y, scale),
            None => Ok(y),
        }
    }

    /// Input of the MLP, from the layer's input and the stream behind attention.
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
