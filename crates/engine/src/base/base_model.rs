//! The base model: an architecture and its frozen weights, loaded once and shared by all trials on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::device_support::refuse_on;
use super::sharded::{RankShare, ShardedLayers};
use super::sparsity::Sparsity;
use super::stacked::{Stacked, store_experts};
use super::weight::Weight;
use super::weight_kinds::{WeightKind, WeightKinds, compute_dtype};
use super::weight_sink::{SharedOut, WeightSink, layer_of};
use crate::{ShardError, TrainError, WeightsError};
use peft_tune_core::architecture::{Architecture, EMBEDDING, LM_HEAD, TensorShape};
use peft_tune_core::plan::Memory;
use peft_tune_core::recipe::{Precision, Recipe};

/// A base model in memory. Nothing in it changes after loading.
#[derive(Debug)]
pub struct BaseModel {
    pub(super) architecture: Architecture,
    pub(super) precision: Precision,
    pub(super) device: Device,
    pub(super) weights: BTreeMap<String, Weight>,
    pub(super) sharded: Option<SharedOut>,
    /// Values that are left out of the model's linear weights.
    pub(super) sparsity: Sparsity,
    /// The memory that it would lie in, where it is on paper.
    pub(super) paper: Option<Memory>,
}

impl BaseModel {
    /// Share of this model that one of several ranks has.
    ///
    /// # Errors
    /// Those of candle.
    pub fn share_of(self, share: RankShare) -> Result<Self, TrainError> {
        let kinds = WeightKinds::new(&self.architecture);
        let mut all: Vec<(String, Weight)> = self.weights.into_iter().collect();
        all.sort_by_key(|(name, _)| layer_of(name));
        let mut weights = WeightSink::new(Some(share), &self.device);
        for (name, weight) in all {
            let kind = kinds.of(&name);
            weights.take(name, kind, weight)?;
        }
        let (weights, sharded) = weights.finish(self.architecture.layers.len())?;
        drop(kinds);
        Ok(Self {
            weights,
            sharded,
            sparsity: self.sparsity,
            paper: self.paper,
            architecture: self.architecture,
            precision: self.precision,
            device: self.device,
        })
    }

    /// Leaves out two of each four values of the model's linear weights.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load_sparse`].
    pub fn sparsified(mut self, sparsity: Sparsity) -> Result<Self, TrainError> {
        sparsity.check(self.precision)?;
        let kinds = WeightKinds::new(&self.architecture);
        for (name, weight) in &mut self.weights {
            if kinds.of(name) == WeightKind::Linear {
                *weight = sparsity.apply(name, weight)?;
            }
        }
        self.sparsity = sparsity;
        Ok(self)
    }

    /// A model of `tensors` that are already in memory: one for each of [`Architecture::tensors`], in any float dtype.
    ///
    /// # Errors
    /// A tensor that is missing or mis-shaped.
    pub fn from_tensors(
        architecture: Architecture,
        mut tensors: BTreeMap<String, Tensor>,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        Self::of(architecture, precision, device, |expected, _| {
            let Some(tensor) = tensors.remove(&expected.name) else {
                return Err(missing(expected.name.clone()).into());
            };
            if tensor.dims() != expected.shape {
                let got = tensor.dims().to_vec();
                return Err(WeightsError::Shape {
                    path: "memory".into(),
                    tensor: expected.name.clone(),
                    expected: expected.shape.clone(),
                    got,
                }
                .into());
            }
            Ok(tensor)
        })
    }

    /// A model with the value that `value_of` gives for each of [`Architecture::tensors`], stored one by one.
    pub(super) fn of(
        architecture: Architecture,
        precision: Precision,
        device: &Device,
        mut value_of: impl FnMut(&TensorShape, &Architecture) -> Result<Tensor, TrainError>,
    ) -> Result<Self, TrainError> {
        refuse_on(device, &architecture)?;
        let (mut weights, kinds) = (BTreeMap::new(), WeightKinds::new(&architecture));
        for tensor in architecture.tensors() {
            let value = value_of(&tensor, &architecture)?;
            if let Some(stack) = Stacked::of(&architecture).filter(|stack| stack.parts(&tensor.name).is_some()) {
                let of_expert = |expert| Ok(value.get(expert)?);
                store_experts(&stack, &tensor.name, of_expert, precision, device, |name, weight| {
                    weights.insert(name, weight);
                    Ok(())
                })?;
                continue;
            }
            let kind = kinds.of(&tensor.name);
            let weight = Weight::store(value, &tensor.name, kind, precision, device)?;
            weights.insert(tensor.name, weight);
        }
        Ok(Self::of_weights(architecture, precision, device, weights))
    }

    /// A whole model on `device` with these weights.
    pub(super) fn of_weights(
        architecture: Architecture,
        precision: Precision,
        device: &Device,
        weights: BTreeMap<String, Weight>,
    ) -> Self {
        Self {
            architecture,
            precision,
            device: device.clone(),
            weights,
            sharded: None,
            sparsity: Sparsity::default(),
            paper: None,
        }
    }

    /// A model on paper, as `recipe` would have it in `memory`: the weights of these layers, and all that stand beside layers,
    /// without memory. Weights that are alike are one.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn on_paper(
        architecture: &Architecture,
        recipe: &Recipe,
        memory: Memory,
        layers: impl IntoIterator<Item = usize>,
    ) -> Result<Self, TrainError> {
        let (kinds, stack) = (WeightKinds::new(architecture), Stacked::of(architecture));
        let (mut weights, mut known) = (BTreeMap::new(), Vec::<(Vec<usize>, WeightKind, Weight)>::new());
        let mut weight_of = |shape: &[usize], kind: WeightKind| -> Result<Weight, TrainError> {
            let alike = known.iter().find(|(other, of, _)| other == shape && *of == kind);
            if let Some((.., weight)) = alike {
                return Ok(weight.clone());
            }
            let weight = Weight::on_paper(shape, kind, recipe)?;
            known.push((shape.to_vec(), kind, weight.clone()));
            Ok(weight)
        };
        for tensor in architecture.tensors_of(layers) {
            let of_experts = stack
                .iter()
                .flat_map(|stack| stack.shapes(&tensor.name, architecture.hidden_size));
            let of_experts: Vec<(String, [usize; 2])> = of_experts.collect();
            for (name, shape) in &of_experts {
                weights.insert(name.clone(), weight_of(shape, WeightKind::Linear)?);
            }
            if of_experts.is_empty() {
                let weight = weight_of(&tensor.shape, kinds.of(&tensor.name))?;
                weights.insert(tensor.name, weight);
            }
        }
        Ok(Self {
            architecture: architecture.clone(),
            precision: recipe.precision,
            device: Device::Cpu,
            weights,
            sharded: None,
            sparsity: Sparsity::default(),
            paper: Some(memory),
        })
    }

    /// The model with those of its weights only whose name `keep` says: what is left to know of it where every parameter trains.
    pub(crate) fn with_weights(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept = self.weights.iter().filter(|(name, _)| keep(name));
        Self {
            architecture: self.architecture.clone(),
            precision: self.precision,
            device: self.device.clone(),
            weights: kept.map(|(name, weight)| (name.clone(), weight.clone())).collect(),
            sharded: None,
            sparsity: self.sparsity.clone(),
            paper: self.paper,
        }
    }

    /// The model's dimensions.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// How the weights are stored.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Values that are left out of the linear weights.
    pub fn sparsity(&self) -> &Sparsity {
        &self.sparsity
    }

    /// The memory that the model would lie in, where it is on paper.
    pub(crate) fn paper(&self) -> Option<Memory> {
        self.paper
    }

    /// Device where the weights lie.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Dtype of the activations.
    pub fn compute_dtype(&self) -> DType {
        compute_dtype(self.precision)
    }

    /// Bytes of all weights in memory, block constants included; with the windows that weights are gathered into.
    pub fn bytes(&self) -> usize {
        let gathered = self.sharded.as_ref().map_or(0, |sharded| sharded.layers.bytes());
        self.weights.values().map(Weight::bytes).sum::<usize>() + gathered
    }

    /// The part of the weights that this process has, where ranks share them out.
    pub(crate) fn sharded(&self) -> Option<&Arc<ShardedLayers>> {
        self.sharded.as_ref().map(|sharded| &sharded.layers)
    }

    /// Rank whose part the model is; `None` for a whole one.
    pub fn share(&self) -> Option<RankShare> {
        self.sharded().map(|layers| layers.share())
    }

    /// The tensor `name` of the checkpoint: in the dtype it is stored in, F32 where it is quantized. The LM head is there in every
    /// model: it may be the embedding.
    ///
    /// # Errors
    /// The architecture has no such tensor; ranks share it out.
    pub fn tensor(&self, name: &str) -> Result<Tensor, TrainError> {
        if let Some(stack) = Stacked::of(&self.architecture)
            && let Some((layer, parts)) = stack.parts(name)
        {
            return stack.join(parts, |expert, part| {
                let name = format!("{layer}.{}", stack.experts.weight_name(expert, part));
                Ok(self.whole_weight(&name)?.exact()?)
            });
        }
        Ok(self.whole_weight(name)?.exact()?)
    }

    /// The weight `name` as it is stored. Where ranks share it out, it has its values only while its layer is in the window.
    pub(crate) fn weight(&self, name: &str) -> Result<&Weight, WeightsError> {
        let stored = self.stored_name(name);
        let view = || self.sharded.as_ref()?.views.get(stored);
        let found = self.weights.get(stored).or_else(view);
        found.ok_or_else(|| missing(name.to_owned()))
    }

    /// The name that the weight `name` is kept under: a tied LM head is the embedding.
    fn stored_name<'n>(&self, name: &'n str) -> &'n str {
        match name {
            LM_HEAD if self.architecture.tied_embeddings => EMBEDDING,
            name => name,
        }
    }

    /// The weight `name`, which has its values at any time.
    fn whole_weight(&self, name: &str) -> Result<&Weight, TrainError> {
        match self.weights.get(self.stored_name(name)) {
            Some(weight) => Ok(weight),
            None if self.weight(name).is_ok() => Err(ShardError::NotWhole {
                tensor: name.to_owned(),
            }
            .into()),
            None => Err(missing(name.to_owned()).into()),
        }
    }
}

fn missing(tensor: String) -> WeightsError {
    WeightsError::MissingTensor {
        path: "memory".into(),
        tensor,
        missing: 1,
    }
}
