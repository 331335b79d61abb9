//! Tensors that layers of one micro-batch have from each other beside the stream: keys and values that several read,
//! the input that each has of its own, and the gradients of all these.

use std::collections::BTreeMap;

use candle_core::Result;

use super::saved::bytes;
use super::traced::residual;
use crate::tensor::Tensor;

/// Tensors that layers have from each other; the forward pass adds to them, and the backward pass uses them up.
#[derive(Debug, Default)]
pub(super) struct CrossLayer {
    /// (T, L·P), the inputs of all layers.
    pub inputs: Option<Tensor>,
    /// Gradients of `inputs`, (T, L·P), where something that makes them trains.
    pub input_gradients: Option<Tensor>,
    /// Keys as rotated and values, (T, Hkv, d) each, by the layer that they are of.
    shared: BTreeMap<usize, [Tensor; 2]>,
    shared_gradients: BTreeMap<usize, [Tensor; 2]>,
    /// Whether the backward pass has begun: layers that run forward again in it share nothing anew.
    pub is_backward: bool,
}

impl CrossLayer {
    /// Makes the tensors with which a pass begins.
    pub(super) fn new(inputs: Option<Tensor>) -> Self {
        Self {
            inputs,
            ..Self::default()
        }
    }

    /// Lets later layers read the keys and values of layer `index`.
    pub(super) fn share(&mut self, index: usize, k: &Tensor, v: &Tensor) {
        if !self.is_backward {
            self.shared.insert(index, [k.clone(), v.clone()]);
        }
    }

    /// The keys and values of layer `index`.
    pub(super) fn shared(&self, index: usize) -> Result<[Tensor; 2]> {
        let found = self.shared.get(&index).cloned();
        found.ok_or_else(|| candle_core::Error::Msg(format!("layer {index} has shared no keys and values")))
    }

    /// Adds to the gradients of what layer `index` has shared.
    pub(super) fn add_gradients(&mut self, index: usize, [d_k, d_v]: [Tensor; 2]) -> Result<()> {
        let sum = match self.shared_gradients.remove(&index) {
            Some([k, v]) => added([k, v], [d_k, d_v])?,
            None => [d_k, d_v],
        };
        self.shared_gradients.insert(index, sum);
        Ok(())
    }

    /// Forgets what layer `index` has shared: all that read it are done.
    pub(super) fn retire(&mut self, index: usize) {
        self.shared.remove(&index);
    }

    /// The gradients of what layer `index` has shared with others, added to its own.
    pub(super) fn with_gradients(&mut self, index: usize, own: [Tensor; 2]) -> Result<[Tensor; 2]> {
        match self.shared_gradients.remove(&index) {
            Some(of_readers) => added(own, of_readers),
            None => Ok(own),
        }
    }

    /// The input of the layer whose columns begin at `first`, (T, width).
    pub(super) fn input(&self, first: usize, width: usize) -> Result<Tensor> {
        match &self.inputs {
            Some(inputs) => inputs.narrow(1, first, width)?.contiguous(),
            None => candle_core::bail!("a layer without the input that it has beside the stream"),
        }
    }

    /// Keeps the gradient of the input whose columns begin at `first`, where it is wanted.
    pub(super) fn set_input_gradient(&self, first: usize, gradient: &Tensor) -> Result<()> {
        match &self.input_gradients {
            Some(all) => all.slice_set(gradient, 1, first),
            None => Ok(()),
        }
    }

    /// What the forward pass has kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter().chain(self.shared.values().flatten())
    }

    /// Bytes of what the forward pass has kept.
    pub(super) fn bytes(&self) -> usize {
        self.kept().map(bytes).sum()
    }
}

/// The sums of keys' and of values' gradients; each pair goes before the next sum is made.
fn added([k, v]: [Tensor; 2], [more_k, more_v]: [Tensor; 2]) -> Result<[Tensor; 2]> {
    let of_keys = residual::add(&k, &more_k)?;
    drop((k, more_k));
    Ok([of_keys, residual::add(&v, &more_v)?])
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn tensor(value: f32) -> Tensor {
        candle_core::Tensor::full(value, (2, 1, 3), &Device::Cpu)
            .unwrap()
            .into()
    }

    fn first(tensor: &Tensor) -> f32 {
        let values = tensor.real().unwrap().flatten_all().unwrap();
        values.get(0).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn gradients_of_all_readers_come_back_once() {
        let mut cross = CrossLayer::default();
        cross.share(3, &tensor(1.0), &tensor(2.0));
        assert_eq!(cross.bytes(), 2 * 24);
        cross.add_gradients(3, [tensor(10.0), tensor(20.0)]).unwrap();
        cross.add_gradients(3, [tensor(1.0), tensor(2.0)]).unwrap();
        let [k, v] = cross.with_gradients(3, [tensor(0.5), tensor(0.25)]).unwrap();
        assert_eq!((first(&k), first(&v)), (11.5, 22.25));
        let [k, _] = cross.with_gradients(3, [tensor(0.5), tensor(0.25)]).unwrap();
        assert_eq!(first(&k), 0.5);
    }

    #[test]
    fn a_layer_that_runs_again_shares_nothing_anew() {
        let mut cross = CrossLayer::default();
        cross.share(0, &tensor(1.0), &tensor(2.0));
        (cross.is_backward, _) = (true, cross.retire(0));
        cross.share(0, &tensor(1.0), &tensor(2.0));
        assert!(cross.shared(0).is_err() && cross.bytes() == 0);
    }
}
