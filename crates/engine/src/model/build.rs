//! Builds a decoder from a base model and the list of what trains.

use candle_core::DType;

use super::block_end::BlockEnd;
use super::builder::Builder;
use super::decoder::Decoder;
use super::layer::{BlockOrder, Layer};
use super::layer_gather::LayerWeights;
use super::layer_input::{LayerInput, LayerInputs};
use super::mixer::MixerBlock;
use super::rounded::Rounded;
use super::trainables::Trainables;
use crate::TrainError;
use crate::base::BaseModel;
use crate::span::Module;
use peft_tune_core::architecture::{
    Architecture, EMBEDDING, LAYER_INPUT_END, LAYER_INPUT_NORM, LAYER_INPUT_TABLE, LAYER_SCALAR, LM_HEAD, Mixer,
    NormPlacement,
};
use peft_tune_core::plan::LayerPlan;
use peft_tune_kernels::device;
use peft_tune_kernels::ops::attention;

impl Decoder {
    /// A decoder on `base` that trains what `trainables` lists.
    ///
    /// # Errors
    /// Those of candle; a name that the base model does not have.
    pub(crate) fn new(base: &BaseModel, trainables: &Trainables<'_>) -> Result<Self, TrainError> {
        Self::in_dtype(base, trainables, base.compute_dtype())
    }

    /// Builds the decoder of [`Decoder::new`] with activations in `dtype`. Frozen weights stay as the base model holds
    /// them: products widen what they pack.
    ///
    /// # Errors
    /// Errors of [`Decoder::new`].
    pub(crate) fn in_dtype(base: &BaseModel, trainables: &Trainables<'_>, dtype: DType) -> Result<Self, TrainError> {
        Self::of_layers(base, trainables, dtype, 0..base.architecture().layers.len())
    }

    /// Builds the decoder of [`Decoder::in_dtype`] from some of the layers.
    ///
    /// # Errors
    /// Errors of [`Decoder::new`].
    pub(super) fn of_layers(
        base: &BaseModel,
        trainables: &Trainables<'_>,
        dtype: DType,
        layers: impl IntoIterator<Item = usize>,
    ) -> Result<Self, TrainError> {
        let rounded = Rounded::new(trainables.parameters, dtype, base.paper())?;
        let builder = Builder {
            base,
            dtype,
            trainables,
            rounded: rounded.as_ref(),
        };
        let architecture = base.architecture();
        for head_dim in architecture.head_dims() {
            attention::prepare(head_dim, dtype, base.device());
        }
        let embedding = builder.parameter(EMBEDDING)?;
        // An adapter may leave the ends of tied embeddings apart.
        let head = match trainables.plan.architecture.tied_embeddings {
            true => embedding.clone(),
            false => builder.parameter(LM_HEAD)?,
        };
        let layers = layers.into_iter().map(|index| builder.layer(index));
        Ok(Self {
            embedding,
            embedding_scale: architecture.embedding_scale,
            layers: layers.collect::<Result<_, _>>()?,
            inputs: builder.layer_inputs()?,
            final_norm: builder.norm(architecture.names.last_norm)?,
            head,
            logit_scale: architecture.logit_scale,
            logit_soft_cap: architecture.logit_soft_cap,
            compute_dtype: dtype,
            device_bytes: base
                .device()
                .is_cuda()
                .then(|| device::facts(base.device()).map_or(0, |facts| facts.memory_bytes)),
            rounded: rounded.into_iter().collect(),
            first_on_tape: trainables.plan.first_on_tape(),
            weights: match base.share() {
                Some(_) => LayerWeights::Unlinked,
                None => LayerWeights::Whole,
            },
        })
    }
}

impl Builder<'_> {
    fn layer(&self, index: usize) -> Result<Layer, TrainError> {
        let (name, plan) = (Architecture::layer_name(index), self.trainables.plan.layer(index));
        Ok(Layer {
            mixer: match self.architecture().mixer(index) {
                Mixer::Attention => MixerBlock::Attention(Box::new(self.attention(&name, plan, index)?)),
                mixer => MixerBlock::Mixed(Box::new(self.mixed(&name, plan, mixer)?)),
            },
            mlp: self.feed_forward(&name, plan, index)?,
            input: self.layer_input(&name, plan, index)?,
            order: match self.architecture().norm_placement {
                NormPlacement::Shared => BlockOrder::SideBySide,
                NormPlacement::Before | NormPlacement::BeforeAndBehind | NormPlacement::Behind => BlockOrder::InTurn,
            },
            scale: match self.architecture().layer_scalar {
                true => Some(f64::from(self.number(&format!("{name}.{LAYER_SCALAR}"))?)),
                false => None,
            },
        })
    }

    /// Work of layer `index` on an input of its own, where it has one.
    fn layer_input(&self, layer: &str, plan: &LayerPlan, index: usize) -> Result<Option<LayerInput>, TrainError> {
        let (Some(inputs), Some(plan)) = (self.architecture().layer_inputs, &plan.input) else {
            return Ok(None);
        };
        let without_gate = || candle_core::Error::Msg("an input of a layer with an activation that has no gate".into());
        Ok(Some(LayerInput {
            gate: self.group(layer, Module::GateUp, &plan.gate)?,
            activation: self.gated_activation().ok_or_else(without_gate)?,
            end: BlockEnd {
                out: self.group(layer, Module::Down, &plan.projection)?,
                norm: self.norm_where(true, layer, LAYER_INPUT_END)?,
                scale: None,
            },
            first: index * inputs.width,
            width: inputs.width,
        }))
    }

    /// Modules that make the inputs of all layers.
    fn layer_inputs(&self) -> Result<Option<LayerInputs>, TrainError> {
        let architecture = self.architecture();
        let Some(inputs) = architecture.layer_inputs else {
            return Ok(None);
        };
        let plan = self.trainables.plan;
        Ok(Some(LayerInputs {
            table: self.parameter(LAYER_INPUT_TABLE)?,
            projection: self.group("", Module::GateUp, &plan.inputs)?,
            norm: self.norm(LAYER_INPUT_NORM)?,
            hidden: architecture.hidden_size,
            width: inputs.width,
            trains: plan.inputs_train,
        }))
    }
}
