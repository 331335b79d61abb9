//! The trainer: micro-batches in, optimizer steps out.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::checks;
use super::compute_path::ComputePath;
use super::loss_scale::LossScale;
use super::passes::Passes;
use super::precision_switch::PrecisionSwitch;
use super::shares::Share;
use super::trained_set::TrainedSet;
use super::trainer_position::TrainerPosition;
use super::update_pass::UpdatePass;
use crate::base::{BaseModel, RankShare};
use crate::data::MicroBatch;
use crate::model::{Decoder, Keep, LayerGather, RopeTables, Stream, Tape};
use crate::optimizer::{Optimizer, OptimizerError};
use crate::parallel::{Alone, Collective};
use crate::tensor;
use crate::{Parameters, ShardError, TrainError};
use peft_tune_core::plan::{AdapterPlan, update_parts};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_kernels::{Kernels, kernels};

/// One fine-tuning in progress.
///
/// It holds what changes (adapter, gradients, optimizer state) and shares what does not (the base model). Where several
/// devices share the training, each has a trainer, and all see the same micro-batches.
pub struct Trainer {
    pub(super) base: Arc<BaseModel>,
    pub(super) recipe: Recipe,
    pub(super) total_steps: u64,
    pub(super) trained: TrainedSet,
    /// Passes in the recipe's precision.
    pub(crate) own: ComputePath,
    /// Passes in F32 on the same frozen weights; only where the recipe has a schedule of its precision.
    pub(super) fp32: Option<ComputePath>,
    pub(super) switch: PrecisionSwitch,
    pub(super) ropes: RopeTables,
    pub(crate) updates: UpdatePass,
    pub(super) loss_scale: Option<LossScale>,
    pub(super) collective: Arc<dyn Collective>,
    /// Gathering of the weights of layers, where ranks share them out.
    pub(super) gather: Option<Arc<LayerGather>>,
    pub(super) step: u64,
    pub(super) tokens: u64,
}

impl Trainer {
    /// A trainer with a fresh adapter from the recipe's seed, the adapter of `adapter_init`, or, with
    /// `adapter: null`, all parameters of the base model, which is then released. `total_steps` is what the
    /// learning-rate schedule spans.
    ///
    /// # Errors
    /// Adapter settings that do not fit the model, an adapter directory that cannot be read, a schedule of a precision that has
    /// none, memory.
    pub fn new(base: Arc<BaseModel>, recipe: &Recipe, total_steps: u64) -> Result<Self, TrainError> {
        checks::refuse_without_kernels(recipe, base.architecture(), base.device().is_cpu())?;
        recipe.check_precision_schedule(None)?;
        recipe.check_sharding()?;
        recipe.check_optimizer_offload()?;
        recipe.check_built_in()?;
        let trained = TrainedSet::new(&base, recipe)?;
        checks::refuse_other_sparsity(recipe.weight_sparsity, &base)?;
        // Ranks meet before weights are gathered, which no graph can hold.
        let form = match (kernels(), base.share()) {
            (Kernels::Graphs, Some(_)) => Kernels::Fused,
            (form, _) => form,
        };
        let path = |dtype| {
            Ok::<_, TrainError>(ComputePath {
                decoder: Decoder::in_dtype(&base, &trained.trainables(), dtype)?,
                passes: Passes::new(base.device(), recipe.gradient_checkpointing, form),
            })
        };
        let own = path(base.compute_dtype())?;
        let fp32 = (!recipe.precision_schedule.is_none()).then(|| path(DType::F32));
        let fp32 = fp32.transpose()?;
        // Where every parameter trains, the base model's own values have been copied and are not needed again; what is no
        // parameter is needed to write the model.
        let base = match trained.plan.adapter {
            Some(_) => base,
            None => {
                let whole = trained.plan.whole_slots();
                let others = base.with_weights(|name| !whole.contains_key(name));
                // Before the optimizer's states take as much memory again.
                drop(base);
                Arc::new(others)
            }
        };
        let device = base.device();
        let optimizer = Optimizer::new(&recipe.optimizer, &trained.parameters.layout, device)?;
        let updates = UpdatePass::new(optimizer, &recipe.optimizer, device, kernels());
        let parts = || update_parts(&trained.plan.layout, trained.plan.layers.len());
        Ok(Self {
            ropes: RopeTables::new(&base.architecture().ropes, device),
            switch: PrecisionSwitch::new(recipe, &trained.parameters.gradients)?,
            updates: updates.offloaded(&recipe.optimizer, &trained.parameters, parts)?,
            loss_scale: (base.precision() == Precision::Fp16).then(LossScale::default),
            recipe: recipe.clone(),
            total_steps,
            trained,
            own,
            fp32,
            base,
            collective: Arc::new(Alone),
            gather: None,
            step: 0,
            tokens: 0,
        })
    }

    /// Makes the trainer one of several that share the training, all starting from the values of rank 0. From then on
    /// all ranks step and evaluate together, on the same micro-batches.
    ///
    /// # Errors
    /// A rank that does not take part.
    pub fn with_collective(mut self, collective: Arc<dyn Collective>) -> Result<Self, TrainError> {
        collective.broadcast(&self.trained.parameters.values)?;
        self.updates.values_changed();
        if let Some(layers) = self.base.sharded() {
            let (share, at, of) = (layers.share(), collective.rank(), collective.ranks());
            if (share.rank, share.ranks) != (at, of) {
                let RankShare { rank, ranks } = share;
                return Err(ShardError::OtherRank { rank, ranks, at, of }.into());
            }
            let gather = Arc::new(LayerGather::new(Arc::clone(layers), Arc::clone(&collective)));
            for path in [&mut self.own].into_iter().chain(&mut self.fp32) {
                path.decoder.gather_with(Arc::clone(&gather));
            }
            self.gather = Some(gather);
        }
        self.collective = collective;
        Ok(self)
    }

    pub(crate) fn collective(&self) -> &Arc<dyn Collective> {
        &self.collective
    }

    /// Whether ranks share out the weights, and each pass gathers them.
    pub(crate) fn gathers_weights(&self) -> bool {
        self.gather.is_some()
    }

    /// Layers whose weights were gathered from all ranks so far; 0 where each has all.
    pub fn gathered_layers(&self) -> u64 {
        self.gather.as_ref().map_or(0, |gather| gather.gathers())
    }

    /// A forward pass that keeps nothing.
    pub(super) fn forward(&self, stream: &Stream<'_>) -> Result<(tensor::Tensor, Tape), TrainError> {
        let decoder = &self.own.decoder;
        let forward = decoder.forward(stream, &self.ropes, Keep::Nothing);
        forward.map_err(|error| self.cause(error))
    }

    /// Parameters that train, with their gradients of the last step (after clipping).
    pub fn parameters(&self) -> &Parameters {
        &self.trained.parameters
    }

    /// Parameters of the adapter; absent in full fine-tuning.
    pub fn adapter_plan(&self) -> Option<&AdapterPlan> {
        self.trained.plan.adapter.as_ref()
    }

    /// The base model; without its weights in full fine-tuning.
    pub fn base(&self) -> &Arc<BaseModel> {
        &self.base
    }

    /// The optimizer, whose state a checkpoint keeps.
    pub fn optimizer(&self) -> &Optimizer {
        self.updates.optimizer()
    }

    /// A copy on the CPU of what the optimizer and an adaptive schedule of the precision know, for a checkpoint.
    ///
    /// # Errors
    /// Those of candle.
    pub fn state(&self) -> candle_core::Result<Vec<(String, Tensor)>> {
        let mut state = self.updates.optimizer().state()?;
        state.extend(self.switch.state()?);
        Ok(state)
    }

    /// Computes all further steps in F32, or in the recipe's own precision, for measuring; `None` follows the recipe's schedule
    /// again. Without a schedule nothing changes.
    pub fn hold_precision(&mut self, fp32: Option<bool>) {
        self.switch.hold(fp32);
    }

    /// Position of the training. Together with the values of [`Trainer::parameters`] and [`Trainer::state`], it is
    /// everything that the next steps depend on besides their data.
    pub fn position(&self) -> TrainerPosition {
        TrainerPosition {
            step: self.step,
            tokens: self.tokens,
            loss_scale: self.loss_scale,
        }
    }

    /// Goes on from `position` with a state that [`Trainer::state`] returned. The values of the parameters
    /// are the caller's to restore.
    ///
    /// # Errors
    /// A state of another optimizer or another adapter; nothing has changed then.
    pub fn restore(&mut self, position: TrainerPosition, state: &[(String, Tensor)]) -> Result<(), OptimizerError> {
        self.updates.optimizer_mut().load_state(state)?;
        self.switch.load_state(state)?;
        self.updates.values_changed();
        self.step = position.step;
        self.tokens = position.tokens;
        self.loss_scale = position.loss_scale;
        Ok(())
    }

    /// Goes on with another peak of the learning rate.
    pub fn set_learning_rate(&mut self, peak: f64) {
        self.recipe.optimizer.learning_rate = peak;
    }

    /// Peak of the learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.recipe.optimizer.learning_rate
    }

    /// Optimizer steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Micro-batches whose forward and backward passes were replayed from a CUDA graph.
    pub fn replayed_passes(&self) -> u64 {
        let fp32 = self.fp32.as_ref().map_or(0, |path| path.passes.replayed());
        self.own.passes.replayed() + fp32
    }

    /// Updates that were replayed from a CUDA graph.
    pub fn replayed_updates(&self) -> u64 {
        self.updates.replayed()
    }

    /// Tokens trained on, padding not counted.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Model that a text is read with: as trained so far.
    pub(crate) fn reading(&mut self) -> (&BaseModel, &Decoder, &mut RopeTables) {
        (&self.base, &self.own.decoder, &mut self.ropes)
    }

    /// Parameters that train, with the names that lead there.
    pub(crate) fn trained(&self) -> &TrainedSet {
        &self.trained
    }

    /// The shares of a global batch, or of an evaluation, that are computed here.
    pub(super) fn shares(&self) -> Vec<Share> {
        Share::here(self.collective.as_ref(), self.recipe.batch.devices)
    }

    /// Why a pass failed: what a gather met says more than the pass does.
    pub(super) fn cause(&self, error: candle_core::Error) -> TrainError {
        let failure = self.gather.as_ref().and_then(|gather| gather.take_failure());
        failure.unwrap_or(TrainError::Candle(error))
    }

    /// Checks every micro-batch and counts the targets, of which there must be one.
    pub(super) fn check(&self, micro_batches: &[MicroBatch]) -> Result<u64, TrainError> {
        checks::targets_of(micro_batches, self.base.architecture())
    }

    /// Checks the tokens of a micro-batch.
    pub(super) fn check_tokens(&self, batch: &MicroBatch) -> Result<(), TrainError> {
        checks::tokens_of(batch, self.base.architecture())
    }
}
