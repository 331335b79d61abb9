//! The decoder: embedding, layers, last norm and LM head, forward and backward.

use std::sync::Arc;

use candle_core::{DType, Device, Result};

use super::cross_layer::CrossLayer;
use super::layer::Layer;
use super::layer_gather::{LayerGather, LayerWeights};
use super::layer_input::LayerInputs;
use super::norm::Norm;
use super::offload::{DeviceToHost, HostToDevice, Offload};
use super::parameter::BaseParameter;
use super::rounded::Rounded;
use super::saved::{LayerSaved, bytes};
use super::traced::loss_head::Targets;
use super::traced::matmul::{self, Term};
use super::traced::{embedding, loss_head, residual};
use super::{RopeTables, Stream};
use crate::span;
use crate::span::{Module, StepPhase};
use crate::tensor::Tensor;
use peft_tune_core::plan::{GradientsReady, LayerKeep, chunk_tokens, chunk_tokens_on_gpu, layer_keep};
use peft_tune_core::recipe::Checkpointing;

/// A base model with what trains on it.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub(super) embedding: BaseParameter,
    /// Factor on the embedded tokens.
    pub(super) embedding_scale: Option<f64>,
    pub(super) layers: Vec<Layer>,
    /// Modules that make the inputs of layers beside the stream.
    pub(super) inputs: Option<LayerInputs>,
    pub(super) final_norm: Norm,
    /// (V, H); shares the embedding's tensor where they are tied.
    pub(super) head: BaseParameter,
    /// Factor on the logits, taken of what the head reads.
    pub(super) logit_scale: Option<f64>,
    pub(super) logit_soft_cap: Option<f64>,
    pub(super) compute_dtype: DType,
    /// Memory of the GPU that computes; 0 where the driver does not tell, and `None` on the CPU.
    pub(super) device_bytes: Option<u64>,
    /// Rounded copies of all parameters that train on the decoder.
    pub(super) rounded: Vec<Rounded>,
    /// The lowest layer that a gradient must reach; as many as there are layers where none does.
    pub(super) first_on_tape: usize,
    /// Location of the layers' weights.
    pub(super) weights: LayerWeights,
}

/// Amount that a forward pass keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Keeps nothing: evaluation.
    Nothing,
    /// Keeps what backward needs under this setting.
    ForBackward(Checkpointing),
}

/// Tensors that a forward pass kept, in the order of the layers.
#[derive(Debug)]
pub(crate) struct Tape {
    layers: Vec<LayerTape>,
    cross: CrossLayer,
    /// (T, H), input of the last norm.
    last: Tensor,
    /// (T,) F32
    last_rstd: Tensor,
}

#[derive(Debug)]
enum LayerTape {
    /// Marks a layer below everything that trains, of which nothing is kept.
    Nothing,
    /// Tensors of the layer, as backward reads them.
    Saved(Box<LayerSaved>),
    /// The layer's input; backward runs the layer forward again.
    Input(Tensor),
    /// Input of the layer, in host memory.
    HostInput(DeviceToHost),
    /// Input of the layer, on its way back from host memory.
    HostToDevice(HostToDevice),
}

impl Tape {
    /// Bytes of all that was kept; what the device holds and, apart from it, what the host holds.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let mut device = self.last_bytes() + self.cross.bytes();
        let mut host = 0;
        for layer in &self.layers {
            match layer {
                LayerTape::Nothing => {}
                LayerTape::Saved(saved) => device += saved.bytes(),
                LayerTape::Input(input) => device += bytes(input),
                LayerTape::HostInput(input) => host += input.bytes(),
                LayerTape::HostToDevice(input) => host += input.bytes(),
            }
        }
        (device, host)
    }

    /// Bytes of the last norm's input.
    fn last_bytes(&self) -> usize {
        bytes(&self.last) + bytes(&self.last_rstd)
    }
}

impl LayerTape {
    /// Bytes on the device and in the host's memory.
    fn bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Saved(saved) => saved.bytes(),
            Self::Input(input) => bytes(input),
            Self::HostInput(input) => input.bytes(),
            Self::HostToDevice(input) => input.bytes(),
        }
    }
}

impl Decoder {
    /// Has the weights of each layer gathered from all ranks before it is computed.
    pub(crate) fn gather_with(&mut self, gather: Arc<LayerGather>) {
        self.weights = LayerWeights::Gathered(gather);
    }

    /// Has the weights of `layer` where it reads them, on the way up.
    pub(super) fn bring_up(&self, layer: usize) -> Result<()> {
        let next = layer + 1;
        self.weights.bring(layer, (next < self.layers.len()).then_some(next))
    }

    /// Has the weights of `layer` where they are read on the way down; those of the layer below come next.
    fn bring_down(&self, layer: usize) -> Result<()> {
        self.weights
            .bring(layer, (layer > self.first_on_tape).then(|| layer - 1))
    }

    /// Gathers what a forward pass does, for the other ranks: this one computes nothing meanwhile.
    pub(crate) fn gather_forward(&self) -> Result<()> {
        (0..self.layers.len()).try_for_each(|layer| self.bring_up(layer))
    }

    /// Gathers what a backward pass does, for the other ranks.
    pub(crate) fn gather_backward(&self) -> Result<()> {
        let mut layers = (self.first_on_tape..self.layers.len()).rev();
        layers.try_for_each(|layer| self.bring_down(layer))
    }

    /// The normed hidden states (T, H) that the LM head reads, and the tape.
    pub(crate) fn forward(&self, stream: &Stream<'_>, ropes: &RopeTables, keep: Keep) -> Result<(Tensor, Tape)> {
        let mut x = self.begin(&stream.ids)?;
        let mut cross = self.cross_layer(&x, stream)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        let mut offload = Offload::new(x.real()?.device())?;
        for (index, layer) in self.layers.iter().enumerate() {
            self.bring_up(index)?;
            let _span = span::layer(index);
            let (y, saved) = layer.forward(&x, stream, ropes, &mut cross)?;
            let tape = match keep {
                Keep::ForBackward(checkpointing) if index >= self.first_on_tape => {
                    keep_layer(layer_keep(checkpointing, index), x, saved, &mut offload)?
                }
                _ => LayerTape::Nothing,
            };
            span::keep(|| tape.bytes());
            layers.push(tape);
            x = y;
        }
        let (normed, last_rstd) = self.end(&x)?;
        if keep == Keep::Nothing {
            cross = CrossLayer::default();
        }
        let tape = Tape {
            layers,
            cross,
            last: x,
            last_rstd,
        };
        if keep != Keep::Nothing {
            span::keep(|| tape.last_bytes() + tape.cross.bytes());
        }
        Ok((normed, tape))
    }

    /// Input of the head behind the last layer, (T, H), and rstd of the last norm.
    pub(super) fn end(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (normed, rstd) = self.final_norm.forward(x)?;
        Ok((self.scaled_for_head(normed)?, rstd))
    }

    /// The gradient of that stream from that of what the head read.
    pub(super) fn end_backward(&self, x: &Tensor, rstd: &Tensor, d_normed: Tensor) -> Result<Tensor> {
        let d_normed = self.scaled_for_head(d_normed)?;
        self.final_norm.backward(x, rstd, &d_normed)
    }

    /// Loss of the stream and, where it has a gradient scale, the gradient with respect to the normed hidden states. Adds
    /// the head's gradient where it trains.
    pub(crate) fn loss(&self, stream: &Stream<'_>, normed: &Tensor) -> Result<loss_head::Output> {
        self.loss_of(normed, stream.targets(), stream.gradient_scale)
    }

    /// Loss of any rows with their targets, as [`Decoder::loss`] has it of a stream.
    pub(super) fn loss_of(
        &self,
        normed: &Tensor,
        targets: Targets<'_>,
        gradient_scale: Option<f32>,
    ) -> Result<loss_head::Output> {
        let _span = span::module(Module::Head);
        let vocabulary = self.head.value().dims2()?.0;
        let trained = self.head.trained().filter(|_| gradient_scale.is_some());
        let chunk_tokens = match self.device_bytes {
            Some(bytes) => chunk_tokens_on_gpu(vocabulary, bytes),
            None => chunk_tokens(vocabulary, trained.is_some()),
        };
        let settings = loss_head::Settings {
            soft_cap: self.logit_soft_cap,
            chunk_tokens,
            gradient_scale,
        };
        match trained {
            Some(head) => {
                loss_head::forward_with_weight_gradient(normed, &head.value, targets, &settings, &head.gradient)
            }
            None => loss_head::forward(normed, self.head.value(), targets, &settings),
        }
    }

    /// Adds the gradients of all that trains, from the tape and the gradient of the normed hidden states. `follower` is told how far it has
    /// come, but for the end.
    pub(crate) fn backward(
        &self,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        (tape, d_normed): (Tape, Tensor),
        follower: &mut dyn FnMut(GradientsReady) -> Result<()>,
    ) -> Result<()> {
        let mut dx = self.end_backward(&tape.last, &tape.last_rstd, d_normed)?;
        span::release(|| tape.last_bytes());
        drop((tape.last, tape.last_rstd));
        follower(GradientsReady::Head)?;
        let mut cross = tape.cross;
        let of_layers = cross.bytes();
        cross.is_backward = true;
        if let (Some(inputs), Some(all)) = (&self.inputs, &cross.inputs) {
            cross.input_gradients = inputs.trains.then(|| all.zeros_like()).transpose()?;
        }
        let mut kept = SavedLayers::new(tape.layers, dx.real()?.device());
        while let Some((index, kept_layer, on_tape)) = kept.pop()? {
            let layer = &self.layers[index];
            if index >= self.first_on_tape {
                self.bring_down(index)?;
            }
            let _span = span::layer(index);
            cross.retire(index);
            let Some(saved) = kept_layer.saved(layer, stream, ropes, &mut cross)? else {
                break;
            };
            let wants_dx = index > self.first_on_tape || self.embedding.is_trained();
            let in_use = saved.bytes();
            span::release(|| on_tape);
            span::keep(|| in_use);
            let below = layer.backward(saved, dx, stream, (ropes, &mut cross), wants_dx)?;
            span::release(|| in_use);
            follower(GradientsReady::Layer(index))?;
            match below {
                Some(below) => dx = below,
                None => {
                    span::release(|| of_layers);
                    return self.backward_embed(stream, cross, None);
                }
            }
        }
        span::release(|| of_layers);
        self.backward_embed(stream, cross, Some(dx))
    }

    /// Adds the gradients of what makes the layers' inputs and, where that of its output is there, of the embedding.
    pub(super) fn backward_embed(&self, stream: &Stream<'_>, cross: CrossLayer, dx: Option<Tensor>) -> Result<()> {
        let of_inputs = self.backward_inputs(stream, cross)?;
        let Some(dx) = dx else { return Ok(()) };
        match of_inputs {
            Some(more) => self.backward_embedding(stream, residual::add(&dx, &more)?),
            None => self.backward_embedding(stream, dx),
        }
    }

    /// Logits (tokens, V) F32 of normed hidden states, all at once.
    pub(crate) fn logits(&self, normed: &Tensor) -> Result<candle_core::Tensor> {
        let _span = span::module(Module::Head);
        let logits = matmul::nt_sum(&[Term::new(normed, self.head.value(), 1.0)], 1)?
            .into_real()?
            .to_dtype(DType::F32)?;
        match self.logit_soft_cap {
            Some(cap) => (logits / cap)?.tanh()? * cap,
            None => Ok(logits),
        }
    }

    /// Begins a pass with the parameters as they are now: the embedded tokens (T, H).
    pub(super) fn begin(&self, ids: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_for_each(|layer| layer.refresh(ids))?;
        self.begin_embed(ids)
    }

    /// Begins a pass whose layers are refreshed: the embedded tokens (T, H).
    pub(super) fn begin_embed(&self, ids: &Tensor) -> Result<Tensor> {
        self.rounded.iter().try_for_each(|rounded| rounded.refresh(ids))?;
        let mut inputs = self.inputs.iter();
        inputs.try_for_each(|inputs| inputs.projection.refresh(ids))?;
        self.embed(ids)
    }

    /// The normed hidden states, or their gradient, times the factor on the logits: the head's products are linear.
    pub(super) fn scaled_for_head(&self, normed: Tensor) -> Result<Tensor> {
        match self.logit_scale {
            Some(scale) => residual::scale(&normed, scale),
            None => Ok(normed),
        }
    }

    pub(super) fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let _span = span::module(Module::Embedding);
        let x = embedding::forward(self.embedding.value(), ids)?.to_dtype(self.compute_dtype)?;
        match self.embedding_scale {
            // The factor is rounded to the compute dtype, as in transformers.
            Some(scale) => x.affine(scale, 0.0),
            None => Ok(x),
        }
    }

    /// Tensors that layers have beside the stream at the beginning of a pass.
    pub(super) fn cross_layer(&self, embedded: &Tensor, stream: &Stream<'_>) -> Result<CrossLayer> {
        let inputs = self.inputs.as_ref();
        let inputs = inputs.map(|inputs| inputs.forward(&stream.ids, embedded, &stream.pass));
        Ok(CrossLayer::new(inputs.transpose()?))
    }

    /// Adds the gradients of what makes the layers' inputs; that of the embedded tokens where the embedding trains.
    fn backward_inputs(&self, stream: &Stream<'_>, cross: CrossLayer) -> Result<Option<Tensor>> {
        let (Some(inputs), Some(gradients)) = (&self.inputs, cross.input_gradients) else {
            return Ok(None);
        };
        drop(cross.inputs);
        let embedded = (&stream.ids, self.embed(&stream.ids)?);
        inputs.backward(gradients, embedded, &stream.pass, self.embedding.is_trained())
    }

    fn backward_embedding(&self, stream: &Stream<'_>, dx: Tensor) -> Result<()> {
        let Some(trained) = self.embedding.trained() else {
            return Ok(());
        };
        let _span = span::module(Module::Embedding);
        let dx = match self.embedding_scale {
            Some(scale) => dx.affine(scale, 0.0)?,
            None => dx,
        };
        embedding::backward_add(&dx, &stream.ids, &trained.gradient)
    }
}

/// Keeps a layer's input, what it saved, or nothing.
fn keep_layer(keep: LayerKeep, input: Tensor, saved: LayerSaved, offload: &mut Offload) -> Result<LayerTape> {
    Ok(match keep {
        LayerKeep::Nothing => LayerTape::Nothing,
        LayerKeep::Input => LayerTape::Input(input),
        LayerKeep::HostInput => LayerTape::HostInput(offload.put(input.real()?)?),
        LayerKeep::Saved => LayerTape::Saved(Box::new(saved.held())),
    })
}

/// Tensors kept of the layers, from the last to the first. While one is worked on, the input of the next is on its way
/// back from the host.
struct SavedLayers {
    device: Device,
    layers: Vec<LayerTape>,
}

/// Tensors kept of one layer, where its backward pass runs.
pub(super) enum KeptLayer {
    Nothing,
    Saved(Box<LayerSaved>),
    Input(Tensor),
}

impl KeptLayer {
    /// Tensors that backward needs of the layer, run forward again where only its input was kept.
    pub(super) fn saved(
        self,
        layer: &Layer,
        stream: &Stream<'_>,
        ropes: &RopeTables,
        cross: &mut CrossLayer,
    ) -> Result<Option<LayerSaved>> {
        let input = match self {
            Self::Nothing => return Ok(None),
            Self::Saved(saved) => return Ok(Some(*saved)),
            Self::Input(input) => input,
        };
        let _span = span::phase(StepPhase::Recompute);
        layer.recompute(&input, stream, ropes, cross).map(Some)
    }
}

impl SavedLayers {
    fn new(layers: Vec<LayerTape>, device: &Device) -> Self {
        Self {
            device: device.clone(),
            layers,
        }
    }

    /// The next layer's index, what was kept of it, and how many bytes that were.
    fn pop(&mut self) -> Result<Option<(usize, KeptLayer, usize)>> {
        let Some(layer) = self.layers.pop() else {
            return Ok(None);
        };
        let bytes = layer.bytes();
        let kept = match layer {
            LayerTape::Nothing => KeptLayer::Nothing,
            LayerTape::Saved(saved) => KeptLayer::Saved(saved),
            LayerTape::Input(input) => KeptLayer::Input(input),
            LayerTape::HostInput(input) => KeptLayer::Input(input.fetch(&self.device)?.arrive()?.into()),
            LayerTape::HostToDevice(input) => KeptLayer::Input(input.arrive()?.into()),
        };
        if let Some(LayerTape::HostInput(_)) = self.layers.last()
            && let Some(LayerTape::HostInput(next)) = self.layers.pop()
        {
            self.layers.push(LayerTape::HostToDevice(next.fetch(&self.device)?));
        }
        Ok(Some((self.layers.len(), kept, bytes)))
    }
}
