//! The base model: an architecture and its frozen weights, loaded once and shared by all trials on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use sha2::{Digest, Sha256};

use super::sharded::{LayerCutter, LoadedLayer, RankShare, ShardedLayers};
use super::sparsity::Sparsity;
use super::stacked;
use super::stacked::Stacked;
use super::weight::{Weight, WeightKind, compute_dtype};
use crate::checkpoint::Checkpoint;
use crate::{CpuOnlyError, ShardError, TrainError, WeightsError};
use peft_tune_core::architecture::{
    Architecture, CORRECTION, EMBEDDING, Experts, GATED_NORM, LM_HEAD, LinearRole, TensorShape,
};
use peft_tune_core::plan::Memory;
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_kernels::ops::attention;

/// Name of the file that describes a model.
pub(crate) const CONFIG: &str = "config.json";

/// A base model in memory. Nothing in it changes after loading.
#[derive(Debug)]
pub struct BaseModel {
    architecture: Architecture,
    precision: Precision,
    device: Device,
    weights: BTreeMap<String, Weight>,
    sharded: Option<SharedOut>,
    /// Values that are left out of the model's linear weights.
    sparsity: Sparsity,
    /// The memory that it would lie in, where it is on paper.
    paper: Option<Memory>,
}

/// Weights of which this process has a part.
#[derive(Debug)]
struct SharedOut {
    layers: Arc<ShardedLayers>,
    /// Weights by name; what they show is the layer that lies in their window.
    views: BTreeMap<String, Weight>,
}

impl BaseModel {
    /// Loads the model in `directory` (`config.json` and safetensors) into the storage of `precision` on `device`.
    ///
    /// # Errors
    /// A configuration or checkpoint that is missing, damaged, unknown, or does not agree with the other.
    pub fn load(directory: &Path, precision: Precision, device: &Device) -> Result<Self, TrainError> {
        Self::load_share(directory, precision, device, None)
    }

    /// Loads a model as [`BaseModel::load`] does. Where `share` names a rank, the process has that rank's share of the
    /// layers' linear weights only, and whole ones of one layer at a time meanwhile; a [`Trainer`](crate::Trainer) that
    /// is linked with the other ranks gathers them.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load`].
    pub fn load_share(
        directory: &Path,
        precision: Precision,
        device: &Device,
        share: Option<RankShare>,
    ) -> Result<Self, TrainError> {
        let mut loader = BaseLoader::open(directory, precision, device)?;
        // Layer by layer, and what lies beside them first.
        let mut tensors = loader.next(|_| true);
        tensors.sort_by_key(|tensor| layer_of(&tensor.name));
        let mut weights = WeightSink::new(share, device);
        loader.hand_over(tensors, |name, kind, weight| Ok(weights.take(name, kind, weight)?))?;
        let (weights, sharded) = weights.finish(loader.base.architecture.layers.len())?;
        Ok(Self {
            weights,
            sharded,
            ..loader.base
        })
    }

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

    /// Loads a model as [`BaseModel::load`] does, with two of each four values of the linear weights; see [`Sparsity`].
    /// No weight is dense but while it is read.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load`]; a weight whose rows are not whole groups of four, or for whose columns there are no norms.
    pub fn load_sparse(
        directory: &Path,
        precision: Precision,
        sparsity: Sparsity,
        device: &Device,
    ) -> Result<Self, TrainError> {
        sparsity.check(precision)?;
        let mut loader = BaseLoader::open(directory, precision, device)?;
        loader.read(|_| true, |name, weight| sparsity.apply(name, &weight))?;
        let base = loader.into_base();
        Ok(Self { sparsity, ..base })
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

    /// Checks that the checkpoint in `directory` holds the tensors of `architecture`, and no others.
    ///
    /// # Errors
    /// A checkpoint that is missing or damaged; the first tensor that does not fit.
    pub fn check(directory: &Path, architecture: &Architecture) -> Result<(), TrainError> {
        let checkpoint = Checkpoint::open_for(directory, architecture)?;
        checkpoint.check(&architecture.tensors(), |name| is_ignored(name, architecture))?;
        Ok(())
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

    /// A model that has learned nothing: matrices normal with deviation 0.02, norms 1, biases 0, each tensor from a
    /// generator of its own that `seed` and its name decide.
    pub fn random(
        architecture: Architecture,
        seed: u64,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let mut tensors = BTreeMap::new();
        for tensor in architecture.tensors() {
            let values = random_start(&tensor, seed, architecture.norm_offset);
            let value = Tensor::from_vec(values, tensor.shape, &Device::Cpu)?;
            tensors.insert(tensor.name, value);
        }
        Self::from_tensors(architecture, tensors, precision, device)
    }

    /// Makes the model of [`BaseModel::random`] with values that a GPU draws itself: for sizes that take the CPU
    /// minutes. They are the same each time, and not the same on another device.
    pub fn random_on_device(
        architecture: Architecture,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        const SEED: u64 = 1;
        if device.is_cpu() {
            return Self::random(architecture, SEED, precision, device);
        }
        // A device's generator continues where it was: without it the next model would be another one.
        device.set_seed(SEED)?;
        Self::of(architecture, precision, device, |tensor, architecture| {
            let shape = tensor.shape.as_slice();
            Ok(match (tensor.name.ends_with(".bias"), shape) {
                (true, _) => Tensor::zeros(shape, DType::F32, device)?,
                (false, []) => Tensor::new(0.5f32, device)?,
                (false, [_]) => Tensor::full(1.0 - architecture.norm_offset, shape, device)?,
                (false, _) => Tensor::randn(0f32, 0.02, shape, device)?,
            })
        })
    }

    /// A model with the value that `value_of` gives for each of [`Architecture::tensors`], stored one by one.
    fn of(
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
        Ok(Self {
            architecture,
            precision,
            device: device.clone(),
            weights,
            sharded: None,
            sparsity: Sparsity::default(),
            paper: None,
        })
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

/// Destination of weights as they are loaded, layer by layer.
struct WeightSink<'a> {
    weights: BTreeMap<String, Weight>,
    cutter: Option<LayerCutter>,
    device: &'a Device,
    /// The layer whose weights come now, and those that came.
    layer: usize,
    loaded: LoadedLayer,
}

impl<'a> WeightSink<'a> {
    fn new(share: Option<RankShare>, device: &'a Device) -> Self {
        Self {
            weights: BTreeMap::new(),
            cutter: share.map(LayerCutter::new),
            device,
            layer: 0,
            loaded: Vec::new(),
        }
    }

    fn take(&mut self, name: String, kind: WeightKind, weight: Weight) -> candle_core::Result<()> {
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

    fn finish(mut self, layers: usize) -> candle_core::Result<(BTreeMap<String, Weight>, Option<SharedOut>)> {
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
fn layer_of(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("model.layers.")?;
    rest.split('.').next()?.parse().ok()
}

/// A base model while it is read, some of its tensors at a time.
pub(crate) struct BaseLoader {
    checkpoint: Checkpoint,
    base: BaseModel,
    /// Tensors that are not read yet.
    tensors: Vec<TensorShape>,
}

impl BaseLoader {
    /// The model in `directory`, with nothing read.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load`].
    pub(crate) fn open(directory: &Path, precision: Precision, device: &Device) -> Result<Self, TrainError> {
        let config = directory.join(CONFIG);
        let mut architecture = Architecture::from_config(&config)?;
        refuse_on(device, &architecture)?;
        let checkpoint = Checkpoint::open_for(directory, &architecture)?;
        architecture = stacked::as_stored(architecture, &checkpoint);
        if architecture.tied_embeddings && checkpoint.has_own_head()? {
            tracing::warn!(
                "{} ties the LM head to the embedding (`tie_word_embeddings`), and the weights beside it have an `{LM_HEAD}` with values \
                 of its own: it is used, as in transformers; set the key to false",
                config.display()
            );
            architecture = architecture.with_own_head();
        }
        // Before the weights: another process may try kernels first, which needs some of the GPU's memory.
        for head_dim in architecture.head_dims() {
            attention::prepare(head_dim, compute_dtype(precision), device);
        }
        let expected = architecture.tensors();
        let (plain, packed): (Vec<TensorShape>, Vec<TensorShape>) = expected
            .into_iter()
            .partition(|tensor| !stacked::is_mxfp4(&checkpoint, &tensor.name));
        let is_packed = |name: &str| {
            let owner = stacked::mxfp4_owner(name);
            owner.is_some_and(|owner| packed.iter().any(|tensor| tensor.name == owner))
        };
        checkpoint.check(&plain, |name| is_ignored(name, &architecture) || is_packed(name))?;
        Ok(Self {
            checkpoint,
            base: BaseModel {
                architecture,
                precision,
                device: device.clone(),
                weights: BTreeMap::new(),
                sharded: None,
                sparsity: Sparsity::default(),
                paper: None,
            },
            tensors: plain.into_iter().chain(packed).collect(),
        })
    }

    /// The tensors that `wants` names, and that were not read yet.
    fn next(&mut self, wants: impl Fn(&str) -> bool) -> Vec<TensorShape> {
        let (now, later) = std::mem::take(&mut self.tensors)
            .into_iter()
            .partition(|tensor| wants(&tensor.name));
        self.tensors = later;
        now
    }

    /// Reads tensors and hands their weights to `take`, those of experts one by one.
    fn hand_over(
        &self,
        tensors: Vec<TensorShape>,
        mut take: impl FnMut(String, WeightKind, Weight) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let BaseModel {
            architecture,
            precision,
            device,
            ..
        } = &self.base;
        let (kinds, stack) = (WeightKinds::new(architecture), Stacked::of(architecture));
        for tensor in tensors {
            if let Some(stack) = stack.as_ref().filter(|stack| stack.parts(&tensor.name).is_some()) {
                let read = |expert| stack.read(&self.checkpoint, &tensor, expert, *precision);
                store_experts(stack, &tensor.name, read, *precision, device, |name, weight| {
                    take(name, WeightKind::Linear, weight)
                })?;
                continue;
            }
            let kind = kinds.of(&tensor.name);
            let weight = Weight::load(&self.checkpoint, &tensor, kind, *precision, device)?;
            take(tensor.name, kind, weight)?;
        }
        Ok(())
    }

    /// Reads the tensors that `wants` names; each linear weight is kept as `store` has it.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load`]; those of `store`.
    pub(crate) fn read(
        &mut self,
        wants: impl Fn(&str) -> bool,
        store: impl Fn(&str, Weight) -> Result<Weight, TrainError>,
    ) -> Result<(), TrainError> {
        let (tensors, mut read) = (self.next(wants), BTreeMap::new());
        self.hand_over(tensors, |name, kind, weight| {
            let weight = match kind {
                WeightKind::Linear => store(&name, weight)?,
                WeightKind::Dense | WeightKind::Exact => weight,
            };
            read.insert(name, weight);
            Ok(())
        })?;
        self.base.weights.extend(read);
        Ok(())
    }

    /// The model as far as it is read.
    pub(crate) fn base(&self) -> &BaseModel {
        &self.base
    }

    /// Leaves values out of the linear weights that were read, where `wants` names them.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load_sparse`].
    pub(crate) fn sparsify(&mut self, wants: impl Fn(&str) -> bool, sparsity: &Sparsity) -> Result<(), TrainError> {
        let kinds = WeightKinds::new(&self.base.architecture);
        for (name, weight) in &mut self.base.weights {
            if wants(name) && kinds.of(name) == WeightKind::Linear {
                *weight = sparsity.apply(name, weight)?;
            }
        }
        Ok(())
    }

    /// The model with what was left out of it.
    pub(crate) fn into_sparse_base(self, sparsity: Sparsity) -> BaseModel {
        BaseModel { sparsity, ..self.base }
    }

    fn into_base(self) -> BaseModel {
        self.base
    }
}

fn random_start(tensor: &TensorShape, seed: u64, norm_offset: f32) -> Vec<f32> {
    let elements: usize = tensor.shape.iter().product();
    // With those of all experts, and what corrects scores.
    if tensor.name.ends_with("bias") {
        return vec![0.0; elements];
    }
    if tensor.name.ends_with(GATED_NORM) {
        return vec![1.0; elements];
    }
    if tensor.shape.len() == 1 {
        return vec![1.0 - norm_offset; elements];
    }
    if tensor.shape.is_empty() {
        return vec![0.5];
    }
    let mut digest = Sha256::new();
    digest.update(seed.to_le_bytes());
    digest.update(tensor.name.as_bytes());
    let mut generator = Pcg64::from_seed(digest.finalize().into());
    let mut normal = || 0.02 * generator.sample::<f32, _>(StandardNormal);
    (0..elements).map(|_| normal()).collect()
}

fn missing(tensor: String) -> WeightsError {
    WeightsError::MissingTensor {
        path: "memory".into(),
        tensor,
        missing: 1,
    }
}

/// Kinds that the tensors of an architecture are stored as.
struct WeightKinds<'a> {
    /// The weight of a linear layer beside the decoder layers.
    outer: Option<String>,
    experts: Option<&'a Experts>,
    /// Names of the linear layers inside decoder layers, and whether they are routers.
    modules: BTreeMap<&'static str, bool>,
}

impl<'a> WeightKinds<'a> {
    fn new(architecture: &'a Architecture) -> Self {
        let layers = 0..architecture.layers.len();
        let modules = layers.flat_map(|index| architecture.layer_modules(index));
        Self {
            experts: architecture.experts.as_ref(),
            outer: architecture
                .outer_module()
                .map(|module| format!("{}.weight", module.name)),
            modules: modules
                .map(|module| (module.name, module.role == LinearRole::Router))
                .collect(),
        }
    }

    fn is_router_bias(&self, inner: &str) -> bool {
        let module = inner.strip_suffix(".bias").and_then(|module| self.modules.get(module));
        module.copied().unwrap_or(false)
    }

    /// Linear layers and experts may be quantized; what chooses experts is exact.
    fn of(&self, name: &str) -> WeightKind {
        if self.outer.as_deref() == Some(name) {
            return WeightKind::Linear;
        }
        let inner = name.splitn(4, '.').nth(3).unwrap_or_default();
        let module = inner
            .strip_suffix(".weight")
            .and_then(|module| self.modules.get(module));
        match (module, self.experts) {
            (Some(true), _) => WeightKind::Exact,
            // What is added to exact logits is exact too.
            _ if self.is_router_bias(inner) => WeightKind::Exact,
            (Some(false), _) => WeightKind::Linear,
            (None, Some(experts)) if experts.weight_of(inner).is_some() => WeightKind::Linear,
            (None, Some(_)) if inner.ends_with(CORRECTION) => WeightKind::Exact,
            (None, _) => WeightKind::Dense,
        }
    }
}

/// Hands the projections of all experts, from their parts (in, outs) of the stacked tensor `name`, to `take`.
fn store_experts(
    stack: &Stacked<'_>,
    name: &str,
    of_expert: impl Fn(usize) -> Result<Tensor, TrainError>,
    precision: Precision,
    device: &Device,
    mut take: impl FnMut(String, Weight) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let Some((layer, parts)) = stack.parts(name) else {
        return Ok(());
    };
    for expert in 0..stack.experts.count {
        let value = of_expert(expert)?;
        for (place, part) in parts.iter().enumerate() {
            let name = format!("{layer}.{}", stack.experts.weight_name(expert, *part));
            let weight = Weight::store(
                stack.split(&value, parts, place)?,
                &name,
                WeightKind::Linear,
                precision,
                device,
            )?;
            take(name, weight)?;
        }
    }
    Ok(())
}

/// Families with experts whose trainings on a GPU are compared with the CPU's.
const EXPERTS_ON_GPU: [&str; 4] = ["qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss"];

/// Mixers other than plain attention have no kernels for a GPU yet.
fn refuse_on(device: &Device, architecture: &Architecture) -> Result<(), TrainError> {
    let family = architecture.family.name();
    if !device.is_cpu() && !architecture.attends_everywhere() {
        return Err(CpuOnlyError::Mixers { family }.into());
    }
    // Attention's kernels for a GPU have values as wide as keys.
    if !device.is_cpu() && architecture.latent.is_some() {
        return Err(CpuOnlyError::Latent { family }.into());
    }
    if !device.is_cpu() && architecture.experts.is_some() && !EXPERTS_ON_GPU.contains(&family) {
        return Err(CpuOnlyError::Experts { family }.into());
    }
    Ok(())
}

/// Tensors that published checkpoints carry beside the parameters: buffers of old library versions, and a copy of the
/// embedding where the LM head is tied to it.
fn is_ignored(name: &str, architecture: &Architecture) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with(".masked_bias")
        || (architecture.tied_embeddings && name == LM_HEAD)
        // Layers that draft further tokens.
        || name.starts_with("mtp.")
        || is_draft_layer(name, architecture)
        || is_unread_key(name, architecture)
}

/// Whether a tensor makes keys or values of a layer that reads those of another: published files have them, and nobody needs them.
fn is_unread_key(name: &str, architecture: &Architecture) -> bool {
    let Some((index, module)) = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split_once(".self_attn."))
    else {
        return false;
    };
    let source = index.parse().ok().and_then(|index| architecture.source_of(index));
    let makes = ["k_proj.", "v_proj.", "k_norm.", "v_norm."];
    source.is_some() && makes.iter().any(|start| module.starts_with(start))
}

/// Whether a tensor belongs to a layer behind the last one that predicts further tokens, which training leaves out.
fn is_draft_layer(name: &str, architecture: &Architecture) -> bool {
    let index = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split('.').next());
    let index = index.and_then(|index| index.parse::<usize>().ok());
    let (layers, drafts) = (
        architecture.layers.len(),
        architecture.experts.as_ref().map_or(0, |experts| experts.draft_layers),
    );
    index.is_some_and(|index| (layers..layers + drafts).contains(&index))
}
