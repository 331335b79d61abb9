//! Frozen weights that the ranks of a training share out (`sharding: full`); which rank has what says `core::plan`.
//!
//! A layer's weights are views of a window. They hold the layer's values once those were gathered there, until another layer's
//! take their place: whoever computes a layer has it gathered before.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use super::weight::Weight;
use crate::TrainError;
use crate::parallel::Collective;
use peft_tune_core::plan::{WINDOWS, aligned, share_of, window_of};
use peft_tune_core::recipe::Recipe;

/// Rank among several that share weights out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankShare {
    /// Number of this rank, from 0.
    pub rank: usize,
    /// Number of all ranks, at least 2.
    pub ranks: usize,
}

impl RankShare {
    /// Share that this rank has of the weights that `recipe` freezes; `None` where that is all of them.
    pub fn of(recipe: &Recipe, collective: &dyn Collective) -> Option<Self> {
        let (rank, ranks) = (collective.rank(), collective.ranks());
        (recipe.batch.ranks_of_weights() > 1 && ranks > 1).then_some(Self { rank, ranks })
    }
}

/// A rank's parts of all layers, and the windows that whole layers are gathered into.
#[derive(Debug)]
pub(crate) struct ShardedLayers {
    share: RankShare,
    layers: Vec<Vec<LayerPart>>,
    windows: [BTreeMap<Width, Tensor>; WINDOWS],
}

/// A rank's elements of one dtype of a layer.
#[derive(Debug)]
struct LayerPart {
    /// (s,)
    own: Tensor,
    /// (n s,), of the layer's window.
    window: Tensor,
}

/// Bytes of an element, which tell dtypes apart.
type Width = usize;

/// A layer as it was loaded, and not shared out yet.
pub(super) type LoadedLayer = Vec<(String, Weight)>;

/// The parts of layers whose windows are still to be made.
#[derive(Debug)]
pub(super) struct LayerCutter {
    share: RankShare,
    layers: Vec<CutLayer>,
}

#[derive(Debug)]
struct CutLayer {
    weights: LoadedLayer,
    /// Parts by width.
    parts: BTreeMap<Width, CutPart>,
}

/// Elements of a layer of one width.
#[derive(Debug)]
struct CutPart {
    dtype: DType,
    /// Elements of the whole layer.
    elements: usize,
    /// Elements of this rank.
    own: Tensor,
}

impl LayerCutter {
    pub(super) fn new(share: RankShare) -> Self {
        Self {
            share,
            layers: Vec::new(),
        }
    }

    /// Takes the next layer, and keeps this rank's part of it.
    pub(super) fn push(&mut self, layer: LoadedLayer, device: &Device) -> candle_core::Result<()> {
        let mut parts: BTreeMap<Width, Vec<Tensor>> = BTreeMap::new();
        for (_, weight) in &layer {
            for tensor in weight.tensors()? {
                parts.entry(tensor.dtype().size_in_bytes()).or_default().push(tensor);
            }
        }
        let cut = parts
            .into_iter()
            .map(|(width, tensors)| Ok((width, self.cut(&tensors, device)?)));
        let parts = cut.collect::<candle_core::Result<_>>()?;
        // Their places remain, and nothing of what they hold.
        let emptied = layer
            .into_iter()
            .map(|(name, weight)| Ok((name, weight.without_values()?)));
        let weights = emptied.collect::<candle_core::Result<_>>()?;
        self.layers.push(CutLayer { weights, parts });
        Ok(())
    }

    /// Cuts this rank's part out of the elements of a layer that have one dtype.
    fn cut(&self, tensors: &[Tensor], device: &Device) -> candle_core::Result<CutPart> {
        let dtype = tensors[0].dtype();
        let elements = tensors.iter().map(|tensor| aligned(tensor.elem_count())).sum();
        let size = share_of(elements, self.share.ranks);
        let own = Tensor::zeros(size, dtype, device)?;
        let (first, mut start) = (self.share.rank * size, 0);
        for tensor in tensors {
            let (from, to) = (start.max(first), (start + tensor.elem_count()).min(first + size));
            if from < to {
                let part = tensor.flatten_all()?.narrow(0, from - start, to - from)?;
                own.slice_set(&part, 0, from - first)?;
            }
            start += aligned(tensor.elem_count());
        }
        Ok(CutPart { dtype, elements, own })
    }

    /// The parts with their windows, and the weights as views of those.
    pub(super) fn finish(self, device: &Device) -> candle_core::Result<(ShardedLayers, LoadedLayer)> {
        let Self { share, layers } = self;
        let mut sizes: [BTreeMap<Width, (DType, usize)>; WINDOWS] = Default::default();
        for (index, layer) in layers.iter().enumerate() {
            for (width, part) in &layer.parts {
                let size = sizes[window_of(index)].entry(*width).or_insert((part.dtype, 0));
                size.1 = size.1.max(share_of(part.elements, share.ranks) * share.ranks);
            }
        }
        let mut windows: [BTreeMap<Width, Tensor>; WINDOWS] = Default::default();
        for (window, sizes) in windows.iter_mut().zip(sizes) {
            for (width, (dtype, elements)) in sizes {
                window.insert(width, Tensor::zeros(elements, dtype, device)?);
            }
        }
        let (mut parts, mut views) = (Vec::with_capacity(layers.len()), Vec::new());
        for (index, layer) in layers.into_iter().enumerate() {
            let window = &windows[window_of(index)];
            let part = |(width, CutPart { own, .. }): (Width, CutPart)| {
                let window = window[&width].narrow(0, 0, own.elem_count() * share.ranks)?;
                Ok(LayerPart { own, window })
            };
            parts.push(layer.parts.into_iter().map(part).collect::<candle_core::Result<_>>()?);
            let mut starts: BTreeMap<Width, usize> = BTreeMap::new();
            for (name, weight) in layer.weights {
                let view = weight.map(&mut |tensor| {
                    let width = tensor.dtype().size_in_bytes();
                    let start = starts.entry(width).or_default();
                    let view = window[&width].narrow(0, *start, tensor.elem_count())?;
                    *start += aligned(tensor.elem_count());
                    view.reshape(tensor.shape())
                })?;
                views.push((name, view));
            }
        }
        let sharded = ShardedLayers {
            share,
            layers: parts,
            windows,
        };
        Ok((sharded, views))
    }
}

impl ShardedLayers {
    pub(crate) fn share(&self) -> RankShare {
        self.share
    }

    /// Gathers a layer from all ranks into its window.
    ///
    /// # Errors
    /// Those of the collective.
    pub(crate) fn gather(&self, layer: usize, collective: &dyn Collective) -> Result<(), TrainError> {
        for part in &self.layers[layer] {
            collective.all_gather(&part.own, &part.window)?;
        }
        Ok(())
    }

    /// Bytes of this rank's parts and of the windows.
    pub(super) fn bytes(&self) -> usize {
        let own = self.layers.iter().flatten().map(|part| &part.own);
        let all = own.chain(self.windows.iter().flat_map(BTreeMap::values));
        all.map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes())
            .sum()
    }
}
