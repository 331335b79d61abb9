//! The second half of a decoder layer: an MLP, or a mixture of experts.

use candle_core::Result;

use super::Stream;
use super::expert_block::ExpertBlock;
use super::linear::LinearGroup;
use super::mlp_block::MlpBlock;
use super::saved::FeedForwardSaved;
use crate::tensor::Tensor;

/// Module behind attention.
#[derive(Debug)]
pub(super) enum FeedForward {
    Mlp(Box<MlpBlock>),
    Experts(Box<ExpertBlock>),
}

impl FeedForward {
    /// Groups of linear layers in the module.
    pub(super) fn groups(&self) -> Vec<&LinearGroup> {
        match self {
            Self::Mlp(mlp) => vec![&mlp.projections, &mlp.end.out],
            Self::Experts(experts) => experts.groups(),
        }
    }

    /// The stream behind the block, (T, H): `onto` and what the block makes of `x`; and what backward needs. Experts stand behind
    /// attention and never beside it, where `x` and `onto` are the same.
    pub(super) fn forward(&self, x: &Tensor, onto: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, FeedForwardSaved)> {
        match self {
            Self::Mlp(mlp) => {
                let (y, saved) = mlp.forward(x, onto, stream)?;
                Ok((y, FeedForwardSaved::Mlp(saved)))
            }
            Self::Experts(experts) => {
                let (y, saved) = experts.forward(x, stream)?;
                Ok((y, FeedForwardSaved::Experts(saved)))
            }
        }
    }

    /// What [`FeedForward::forward`] keeps, without the output.
    pub(super) fn recompute(&self, x: &Tensor, stream: &Stream<'_>) -> Result<FeedForwardSaved> {
        match self {
            Self::Mlp(mlp) => mlp.recompute(x, stream).map(FeedForwardSaved::Mlp),
            Self::Experts(experts) => experts.recompute(x, stream).map(FeedForwardSaved::Experts),
        }
    }

    /// The gradient with respect to the block's input; adds all gradients of the block. `input` makes that input again where it was
    /// not saved.
    pub(super) fn backward(
        &self,
        saved: FeedForwardSaved,
        input: impl FnOnce() -> Result<Tensor>,
        dy: Tensor,
        stream: &Stream<'_>,
    ) -> Result<Tensor> {
        match (self, saved) {
            (Self::Mlp(mlp), FeedForwardSaved::Mlp(saved)) => mlp.backward(saved, input, dy, stream),
            (Self::Experts(experts), FeedForwardSaved::Experts(saved)) => experts.backward(saved, input, dy, stream),
            _ => candle_core::bail!("what was saved belongs to a layer of another kind"),
        }
    }
}
