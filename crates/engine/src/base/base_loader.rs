//! Reads a base model from its folder.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Device;

use super::base_model::BaseModel;
use super::device_support::refuse_on;
use super::sharded::RankShare;
use super::sparsity::Sparsity;
use super::stacked::{self, Stacked, store_experts};
use super::unread_tensors::is_ignored;
use super::weight::Weight;
use super::weight_kinds::{WeightKind, WeightKinds, compute_dtype};
use super::weight_sink::{WeightSink, layer_of};
use crate::TrainError;
use crate::checkpoint::Checkpoint;
use peft_tune_core::architecture::{Architecture, LM_HEAD, TensorShape};
use peft_tune_core::recipe::Precision;
use peft_tune_kernels::ops::attention;

/// Name of the file that describes a model.
pub(crate) const CONFIG: &str = "config.json";

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

    /// Checks that the checkpoint in `directory` holds the tensors of `architecture`, and no others.
    ///
    /// # Errors
    /// A checkpoint that is missing or damaged; the first tensor that does not fit.
    pub fn check(directory: &Path, architecture: &Architecture) -> Result<(), TrainError> {
        let checkpoint = Checkpoint::open_for(directory, architecture)?;
        checkpoint.check(&architecture.tensors(), |name| is_ignored(name, architecture))?;
        Ok(())
    }
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
            base: BaseModel::of_weights(architecture, precision, device, BTreeMap::new()),
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
