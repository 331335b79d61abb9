//! Weights as they are loaded, of which a rank may keep a part.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;

use super::sharded::{LayerCutter, LoadedLayer, RankShare, ShardedLayers};
use super::weight::Weight;
use super::weight_kinds::WeightKind;

/// Weights of which this process has a part.
#[derive(Debug)]
pub(super) struct SharedOut {
    pub layers: Arc<ShardedLayers>,
    /// Weights by name; what they show is the layer that lies in their window.
    pub views: BTreeMap<String, Weight>,
}

/// Destination of weights as they are loaded, layer by layer.
pub(super) struct WeightSink<'a> {
    weights: BTreeMap<String, Weight>,
    cutter: Option<LayerCutter>,
    device: &'a Device,
    /// The layer whose weights come now, and those that came.
    layer: usize,
    loaded: LoadedLayer,
}

impl<'a> WeightSink<'a> {
    pub(super) fn new(share: Option<RankShare>, device: &'a Device) -> Self {
        Self {
            weights: BTreeMap::new(),
            cutter: share.map(LayerCutter::new),
            device,
            layer: 0,
            loaded: Vec::new(),
        }
    }

    /// Takes the next weight; those of layers come in the order of the layers.
    pub(super) fn take(&mut self, name: String, kind: WeightKind, weight: Weight) -> candle_core::Result<()> {
        match layer_of(&name) {
            Some(layer) if self.cutter.is_some() && kind == WeightKind::Linear => {
                self.go_to(layer)?;
                self.loaded.push((name, weight));
            }
            _ => {
                self.weights.insert(name, weight);
            }
        }
        Ok(())
    }

    /// Shares out the layers below.
    fn go_to(&mut self, layer: usize) -> candle_core::Result<()> {
        let Some(cutter) = &mut self.cutter else {
            return Ok(());
        };
        while self.layer < layer {
            cutter.push(std::mem::take(&mut self.loaded), self.device)?;
            self.layer += 1;
        }
        Ok(())
    }

    /// The weights of this process, once those of so many layers have come.
    pub(super) fn finish(
        mut self,
        layers: usize,
    ) -> candle_core::Result<(BTreeMap<String, Weight>, Option<SharedOut>)> {
        self.go_to(layers)?;
        let finished = self.cutter.map(|cutter| cutter.finish(self.device)).transpose()?;
        let sharded = finished.map(|(layers, views)| SharedOut {
            layers: Arc::new(layers),
            views: views.into_iter().collect(),
        });
        Ok((self.weights, sharded))
    }
}

/// The decoder layer that a tensor belongs to.
pub(super) fn layer_of(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("model.layers.")?;
    rest.split('.').next()?.parse().ok()
}
