//! The first half of a decoder layer: attention, or what stands in its place.

use candle_core::Result;

use super::attention_block::AttentionBlock;
use super::block_gradients::BlockGradients;
use super::cache::CacheSlot;
use super::cross_layer::CrossLayer;
use super::latent::Latent;
use super::linear::LinearGroup;
use super::mixed_block::MixedBlock;
use super::saved::MixerSaved;
use super::{RopeTables, Stream};
use crate::tensor::Tensor;

/// Block that mixes the tokens of a layer.
#[derive(Debug)]
pub(super) enum MixerBlock {
    Attention(Box<AttentionBlock>),
    Mixed(Box<MixedBlock>),
}

impl MixerBlock {
    /// Groups of linear layers in the block.
    pub(super) fn groups(&self) -> Vec<&LinearGroup> {
        match self {
            Self::Attention(attention) => {
                let mut groups = vec![&attention.projections, &attention.end.out];
                groups.extend(attention.latent.iter().flat_map(Latent::groups));
                groups
            }
            Self::Mixed(mixed) => vec![&mixed.projections, &mixed.end.out],
        }
    }

    /// Groups of [`MixerBlock::groups`], to be changed, in the same order.
    pub(super) fn groups_mut(&mut self) -> Vec<&mut LinearGroup> {
        match self {
            Self::Attention(attention) => {
                let mut groups = vec![&mut attention.projections, &mut attention.end.out];
                groups.extend(attention.latent.iter_mut().flat_map(Latent::groups_mut));
                groups
            }
            Self::Mixed(mixed) => vec![&mut mixed.projections, &mut mixed.end.out],
        }
    }

    /// The layer whose keys and values it reads, where they are not its own.
    pub(super) fn source(&self) -> Option<usize> {
        match self {
            Self::Attention(attention) => attention.source(),
            Self::Mixed(_) => None,
        }
    }

    /// Has the block pass on gradients of another layer's keys and values where that of a `member` does, whose rows go through it.
    pub(super) fn pass_gradients_of(&mut self, member: &Self) {
        if let (Self::Attention(shared), Self::Attention(member)) = (self, member)
            && let (Some(shared), Some(member)) = (&mut shared.reader, &member.reader)
        {
            shared.passes_gradients |= member.passes_gradients;
        }
    }

    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        cross: &mut CrossLayer,
    ) -> Result<(Tensor, MixerSaved)> {
        match self {
            Self::Attention(attention) => {
                let (y, saved) = attention.forward(x, stream, ropes, cross)?;
                Ok((y, MixerSaved::Attention(saved)))
            }
            Self::Mixed(mixed) => {
                let (y, saved) = mixed.forward(x, stream)?;
                Ok((y, MixerSaved::Mixed(saved)))
            }
        }
    }

    /// The stream behind the block, (T, H), of tokens that go on from what `slot` keeps.
    pub(super) fn infer(
        &self,
        x: &Tensor,
        stream: &Stream<'_>,
        (ropes, cross): (&RopeTables, &mut CrossLayer),
        slot: &CacheSlot<'_>,
    ) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => attention.infer(x, stream, (ropes, cross), slot),
            Self::Mixed(mixed) => mixed.infer(x, stream, slot),
        }
    }

    /// The stream behind the block, (T, H), made again from what [`MixerBlock::forward`] kept, to the same bits.
    pub(super) fn recompute_output(&self, saved: &MixerSaved, stream: &Stream<'_>) -> Result<Tensor> {
        match (self, saved) {
            (Self::Attention(attention), MixerSaved::Attention(saved)) => attention.recompute_output(saved, stream),
            (Self::Mixed(mixed), MixerSaved::Mixed(saved)) => mixed.recompute_output(saved, stream),
            _ => other_kind(),
        }
    }

    /// The gradient with respect to the block's input, where `wants_dx`; adds all gradients of the block.
    pub(super) fn backward(
        &self,
        saved: MixerSaved,
        gradients: BlockGradients,
        stream: &Stream<'_>,
        (ropes, cross): (&RopeTables, &mut CrossLayer),
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        match (self, saved) {
            (Self::Attention(attention), MixerSaved::Attention(saved)) => {
                attention.backward(saved, gradients, stream, (ropes, cross), wants_dx)
            }
            (Self::Mixed(mixed), MixerSaved::Mixed(saved)) => mixed.backward(saved, gradients, stream, wants_dx),
            _ => other_kind(),
        }
    }
}

fn other_kind<T>() -> Result<T> {
    candle_core::bail!("what was saved belongs to a layer of another kind")
}
