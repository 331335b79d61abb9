//! The trainer: micro-batches in, optimizer steps out.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::checks;
use super::loss_scale::LossScale;
use super::passes::{Lap, PassInput, PassModel, Passes};
use super::precision_switch::{PrecisionSwitch, StepFacts};
use super::row_watch::{EvaluatedRows, RowWatch};
use super::shares::{Share, add_before};
use super::spread::Spread;
use super::stopwatch::Stopwatch;
use super::tally::{Tally, order};
use super::trained_set::TrainedSet;
use super::update_pass::{UpdateInput, UpdatePass};
use crate::base::{BaseModel, RankShare};
use crate::data::MicroBatch;
use crate::model::{Decoder, DropoutKey, Keep, LayerGather, RopeTables, Stream, Tape};
use crate::optimizer;
use crate::optimizer::{Norm, Optimizer, OptimizerError};
use crate::parallel::{Alone, Collective};
use crate::span;
use crate::span::{StepPhase, Work};
use crate::tensor;
use crate::{Control, Evaluation, Parameters, ShardError, StepEvent, StepSeconds, TrainError};
use peft_tune_core::plan::{AdapterPlan, update_parts};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_kernels::gpu::TimedProducts;
use peft_tune_kernels::ops::loss_head::Sums;
use peft_tune_kernels::{Kernels, kernels};

/// Positions whose logits exist at a time where only the most likely token is asked for.
const ROWS_OF_LOGITS: usize = 64;

/// First steps of a training: whoever measures steps measures none of them.
pub(super) const UNMEASURED_STEPS: u64 = 2;

/// One fine-tuning in progress.
///
/// It holds what changes (adapter, gradients, optimizer state) and shares what does not (the base model). Where several
/// devices share the training, each has a trainer, and all see the same micro-batches.
pub struct Trainer {
    base: Arc<BaseModel>,
    pub(super) recipe: Recipe,
    total_steps: u64,
    trained: TrainedSet,
    /// Passes in the recipe's precision.
    pub(crate) own: ComputePath,
    /// Passes in F32 on the same frozen weights; only where the recipe has a schedule of its precision.
    fp32: Option<ComputePath>,
    switch: PrecisionSwitch,
    ropes: RopeTables,
    pub(crate) updates: UpdatePass,
    loss_scale: Option<LossScale>,
    collective: Arc<dyn Collective>,
    /// Gathering of the weights of layers, where ranks share them out.
    gather: Option<Arc<LayerGather>>,
    step: u64,
    tokens: u64,
}

/// A step before its passes.
pub(super) struct BegunStep {
    /// Event of the step, as far as it is known.
    event: StepEvent,
    in_fp32: bool,
    /// Factor on the gradients, where that may make them overflow.
    scale_now: Option<f32>,
    /// Factor on the gradient of the loss sum.
    pub gradient_scale: f32,
}

/// Norm and product that the update of a step found, which a GPU may still be computing.
pub(super) struct Updated {
    product: Option<f64>,
    norm: Norm,
}

/// Forward and backward passes in one dtype.
pub(crate) struct ComputePath {
    pub(super) decoder: Decoder,
    pub(crate) passes: Passes,
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

    /// Takes one optimizer step on a global batch. The gradient is that of the mean loss over all target tokens of the
    /// global batch, however it is cut into micro-batches and whichever rank computes them.
    ///
    /// The time of the loss head, which computes its gradient in the same pass, counts as forward;
    /// [`StepSeconds::data`] is left to the caller. A pass that is replayed from a CUDA graph is timed as a whole, and counted as
    /// forward and backward in the proportion that they had when they were last launched op by op. Adding up the gradients of several ranks counts as backward.
    ///
    /// # Errors
    /// A global batch without any target, a token outside the vocabulary, a document longer than the model's
    /// positions, memory, a rank that is gone. A loss that is not finite is not an error.
    pub fn step(&mut self, micro_batches: &[MicroBatch]) -> Result<StepEvent, TrainError> {
        let targets = self.check(micro_batches)?;
        // In steps that nobody measures.
        let _timed = TimedProducts::begin(self.step < UNMEASURED_STEPS);
        let mut clock = Stopwatch::start(self.base.device())?;
        let begun = self.begin_step(micro_batches, targets, &mut clock)?;
        // Updates that need nothing of all gradients together begin with the last backward pass.
        let is_followed = self.updates.can_follow() && !self.recipe.updates_wait() && self.collective.ranks() == 1;
        let in_fp32 = begun.in_fp32;
        let how = Manner {
            in_fp32,
            gradient_scale: begun.gradient_scale,
            followed_at: is_followed.then_some(begun.event.learning_rate),
        };
        let mut sums = Vec::new();
        for (before, share) in self.shares().into_iter().enumerate() {
            let batches = share.of(micro_batches);
            sums.push(match before {
                0 => self.passes_of(batches, how, &mut clock)?,
                _ => self.passes_behind(batches, how, &mut clock)?,
            });
            for _ in 0..self.idle_passes(share, micro_batches.len()) {
                let decoder = &self.own.decoder;
                let gathered = decoder.gather_forward().and_then(|()| decoder.gather_backward());
                gathered.map_err(|error| self.cause(error))?;
            }
        }
        self.add_up_gradients()?;
        clock.lap(Lap::Backward)?;
        let updated = self.update(&begun)?;
        clock.lap(Lap::Optimizer)?;
        // Until here a GPU has been given work without a pause; now it is waited for, once, and what it found is read.
        let laps = clock.finish()?;
        let (forward, backward) = path_of(&mut self.own, &mut self.fp32, in_fp32).passes.seconds(&laps);
        let seconds = StepSeconds {
            data: 0.0,
            forward,
            backward,
            optimizer: laps.seconds(Lap::Optimizer),
            total: laps.total_s,
        };
        self.end_step(begun, updated, &sums, seconds)
    }

    /// Prepares the passes of a step: the gradients are zero, and the values where the optimizer takes them.
    pub(super) fn begin_step(
        &mut self,
        micro_batches: &[MicroBatch],
        targets: u64,
        clock: &mut Stopwatch<Lap>,
    ) -> Result<BegunStep, TrainError> {
        let event = StepEvent {
            step: self.step + 1,
            loss: 0.0,
            learning_rate: self.next_learning_rate(),
            grad_norm: 0.0,
            tokens: micro_batches.iter().map(|batch| batch.tokens() as u64).sum(),
            target_tokens: targets,
            seconds: StepSeconds::default(),
            precision: self.switch.precision(self.step),
            precision_decision: None,
        };
        let in_fp32 = self.fp32.is_some() && self.switch.is_fp32(self.step);
        self.zero_gradients()?;
        self.updates.look_ahead(&self.trained.parameters, clock)?;
        // Nothing overflows in F32, and what is learned of the scale in F16 stays as it is meanwhile.
        let scale_now = self
            .loss_scale
            .as_ref()
            .map(|scale| if in_fp32 { 1.0 } else { scale.factor() });
        let loss_scale = scale_now.unwrap_or(1.0);
        Ok(BegunStep {
            event,
            in_fp32,
            scale_now,
            gradient_scale: loss_scale / targets as f32,
        })
    }

    /// Clips the gradients that the passes have added up and updates the values.
    pub(super) fn update(&mut self, begun: &BegunStep) -> Result<Updated, TrainError> {
        let _span = span::phase(StepPhase::Optimizer);
        let input = UpdateInput {
            learning_rate: begun.event.learning_rate,
            loss_scale: begun.scale_now,
        };
        let loss_scale = begun.scale_now.unwrap_or(1.0);
        let product = self.switch.compare(&self.trained.parameters.gradients, loss_scale)?;
        let norm = self.updates.run(&self.trained.parameters, input)?;
        Ok(Updated { product, norm })
    }

    /// Reads what the device found, and counts the step.
    pub(super) fn end_step(
        &mut self,
        begun: BegunStep,
        Updated { product, norm }: Updated,
        sums: &[Vec<Sums>],
        seconds: StepSeconds,
    ) -> Result<StepEvent, TrainError> {
        let BegunStep { mut event, in_fp32, .. } = begun;
        let targets = event.target_tokens;
        event.seconds = seconds;
        event.grad_norm = norm.read()?;
        event.loss = self.add_up_losses(sums)? / targets as f64;
        // A step in fp16 whose gradients overflowed was left out, and the next one takes a smaller factor.
        let is_finite = event.grad_norm.is_finite();
        let is_kept = match &mut self.loss_scale {
            None => true,
            Some(_) if in_fp32 => is_finite,
            Some(scale) => scale.keep(is_finite),
        };
        if is_kept {
            self.updates.optimizer_mut().count_step(event.learning_rate);
        } else {
            self.updates.look_back(&self.trained.parameters)?;
        }
        self.step = event.step;
        self.tokens += event.tokens;
        event.precision_decision = self.switch.step_ended(StepFacts {
            step: event.step,
            targets,
            norm: event.grad_norm,
            product,
        });
        Ok(event)
    }

    /// Loss and accuracy over held-out micro-batches, without dropout; changes nothing.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`].
    pub fn evaluate(&mut self, micro_batches: &[MicroBatch]) -> Result<Evaluation, TrainError> {
        Ok(self.evaluate_with(micro_batches, None)?.evaluation)
    }

    /// Evaluates as [`Trainer::evaluate`] does, with the loss of each row. `watch` may end the evaluation before all
    /// rows are evaluated, on all ranks alike.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`].
    pub fn evaluate_rows(
        &mut self,
        micro_batches: &[MicroBatch],
        watch: &mut dyn RowWatch,
    ) -> Result<EvaluatedRows, TrainError> {
        self.evaluate_with(micro_batches, Some(watch))
    }

    fn evaluate_with(
        &mut self,
        micro_batches: &[MicroBatch],
        mut watch: Option<&mut dyn RowWatch>,
    ) -> Result<EvaluatedRows, TrainError> {
        self.check(micro_batches)?;
        let clock = Stopwatch::<Lap>::start(self.base.device())?;
        let _span = span::phase(StepPhase::Evaluation);
        let mut tally = Tally::new(micro_batches, watch.is_some());
        let is_spread = watch.as_ref().is_some_and(|watch| watch.next_look().is_some());
        // All shares go through one group before any begins the next.
        let shares = self.shares();
        let size = shares.first().map_or(1, |share| share.count());
        for group in order(micro_batches.len().div_ceil(size), is_spread) {
            let group = group * size..micro_batches.len().min((group + 1) * size);
            self.evaluate_group(micro_batches, group.clone(), &mut tally)?;
            tally.pass(group);
            if let Some(watch) = &mut watch
                && tally.is_looked_at(&**watch)
            {
                self.tell_rows(&mut tally)?;
                if tally.shown_to(&mut **watch) == Control::Stop {
                    break;
                }
            }
        }
        self.tell_rows(&mut tally)?;
        let (correct, mut spread) = tally.sums(&shares);
        let mut correct = [correct];
        self.collective.sum_numbers(&mut correct)?;
        self.collective.sum_numbers(&mut spread.0)?;
        let seconds = clock.finish()?.total_s;
        Ok(EvaluatedRows {
            evaluation: self.evaluated(&spread, correct[0], tally.target_tokens(), seconds),
            rows: tally.row_losses(),
        })
    }

    /// Result of an evaluation at the training's present step.
    pub(super) fn evaluated(&self, spread: &Spread, correct: f64, targets: u64, seconds: f64) -> Evaluation {
        Evaluation {
            step: self.step,
            tokens: self.tokens,
            loss: spread.loss() / targets as f64,
            standard_error: spread.standard_error(),
            accuracy: correct / targets as f64,
            target_tokens: targets,
            seconds,
            reward: None,
        }
    }

    /// Logits (tokens, V) F32 of one micro-batch, without dropout.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn logits(&mut self, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, None, None, self.base.device())?;
        let (normed, _) = self.forward(&stream)?;
        Ok(self.own.decoder.logits(&normed)?)
    }

    /// The most likely next token at every position of one micro-batch, without dropout. The logits exist for a few
    /// positions at a time.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn most_likely(&mut self, batch: &MicroBatch) -> Result<Vec<u32>, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, None, None, self.base.device())?;
        let (normed, _) = self.forward(&stream)?;
        let mut tokens = Vec::with_capacity(batch.tokens());
        for first in (0..batch.tokens()).step_by(ROWS_OF_LOGITS) {
            let rows = normed.narrow(0, first, ROWS_OF_LOGITS.min(batch.tokens() - first))?;
            let logits = self.own.decoder.logits(&rows.contiguous()?)?;
            tokens.extend(logits.argmax(candle_core::D::Minus1)?.to_vec1::<u32>()?);
        }
        Ok(tokens)
    }

    /// Runs one micro-batch forward and counts what it keeps for the backward pass.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn saved_bytes(&mut self, batch: &MicroBatch) -> Result<SavedBytes, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, self.dropout(0), None, self.base.device())?;
        let keep = Keep::ForBackward(self.recipe.gradient_checkpointing);
        let (_, tape) = self.own.decoder.forward(&stream, &self.ropes, keep)?;
        let (device, host) = tape.bytes();
        Ok(SavedBytes { device, host })
    }

    /// A forward pass that keeps nothing.
    fn forward(&self, stream: &Stream<'_>) -> Result<(tensor::Tensor, Tape), TrainError> {
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

    fn next_learning_rate(&self) -> f64 {
        let rate = match self.recipe.optimizer.kind.is_schedule_free() {
            true => optimizer::schedule_free_rate,
            false => optimizer::learning_rate,
        };
        let peak = self.recipe.optimizer.learning_rate;
        rate(&self.recipe.schedule, peak, self.step, self.total_steps)
    }

    /// The masks of the micro-batch that begins at `first_token` of the global batch.
    pub(super) fn dropout(&self, first_token: u64) -> Option<DropoutKey> {
        let probability = self.recipe.adapter.as_ref().map_or(0.0, |adapter| adapter.dropout);
        (probability > 0.0).then(|| DropoutKey::new(probability, self.recipe.training.seed, self.step, first_token))
    }

    /// The shares of a global batch, or of an evaluation, that are computed here.
    fn shares(&self) -> Vec<Share> {
        Share::here(self.collective.as_ref(), self.recipe.batch.devices)
    }

    /// Passes that other ranks make and this one does not, whose weights it gives nevertheless.
    fn idle_passes(&self, share: Share, micro_batches: usize) -> usize {
        match self.gather {
            Some(_) => share.idle(micro_batches),
            None => 0,
        }
    }

    /// Why a pass failed: what a gather met says more than the pass does.
    fn cause(&self, error: candle_core::Error) -> TrainError {
        let failure = self.gather.as_ref().and_then(|gather| gather.take_failure());
        failure.unwrap_or(TrainError::Candle(error))
    }

    fn zero_gradients(&self) -> Result<(), TrainError> {
        let gradients = &self.trained.parameters.gradients;
        let _span = span::op("zero_gradients", || Work::on_buffer(gradients, 1));
        Ok(gradients.zero_set()?)
    }

    /// Runs the passes of a share that others come before, whose gradients wait in a buffer of their own meanwhile: a
    /// sum of sums has the bits that ranks find.
    fn passes_behind<'a>(
        &mut self,
        batches: impl Iterator<Item = (u64, &'a MicroBatch)>,
        how: Manner,
        clock: &mut Stopwatch<Lap>,
    ) -> Result<Vec<Sums>, TrainError> {
        let before = self.trained.parameters.gradients.copy()?;
        self.zero_gradients()?;
        let sums = self.passes_of(batches, how, clock)?;
        let gradients = &self.trained.parameters.gradients;
        let _span = span::op("add_up_ranks", || Work::on_buffer(gradients, 3));
        add_before(gradients, &before)?;
        Ok(sums)
    }

    /// Runs the passes of the micro-batches of a share, each behind its first token's number: adds their gradients, and
    /// returns what the loss head found.
    fn passes_of<'a>(
        &mut self,
        batches: impl Iterator<Item = (u64, &'a MicroBatch)>,
        how: Manner,
        clock: &mut Stopwatch<Lap>,
    ) -> Result<Vec<Sums>, TrainError> {
        let mut sums = Vec::new();
        let mut batches = batches.peekable();
        while let Some((first_token, batch)) = batches.next() {
            let span = span::phase(StepPhase::HostToDevice);
            self.ropes.prepare(batch.longest())?;
            drop(span);
            let input = PassInput {
                batch,
                dropout: self.dropout(first_token),
                gradient_scale: how.gradient_scale,
            };
            let path = path_of(&mut self.own, &mut self.fp32, how.in_fp32);
            let model = PassModel {
                decoder: &path.decoder,
                ropes: &self.ropes,
                checkpointing: self.recipe.gradient_checkpointing,
            };
            let run = match how.followed_at.filter(|_| batches.peek().is_none()) {
                Some(rate) => {
                    let follower = &mut |ready| self.updates.follow(ready, rate);
                    path.passes.run_followed(&model, &input, clock, follower)
                }
                None => path.passes.run(&model, &input, clock),
            };
            sums.push(run.map_err(|error| self.cause(error))?);
        }
        Ok(sums)
    }

    /// Evaluates one micro-batch of each share here. Where ranks gather weights, one that has none left takes part all the same.
    fn evaluate_group(
        &mut self,
        micro_batches: &[MicroBatch],
        group: Range<usize>,
        tally: &mut Tally,
    ) -> Result<(), TrainError> {
        for share in self.shares() {
            let Some(index) = group.clone().find(|index| share.has(*index)) else {
                if self.gathers_weights() {
                    self.own.decoder.gather_forward().map_err(|error| self.cause(error))?;
                }
                continue;
            };
            let batch = &micro_batches[index];
            self.ropes.prepare(batch.longest())?;
            let stream = Stream::new(batch, None, None, self.base.device())?;
            let (normed, _) = self.forward(&stream)?;
            let output = self.own.decoder.loss(&stream, &normed)?;
            tally.take(index, &output.sums)?;
        }
        Ok(())
    }

    /// Tells all ranks the losses of each other's rows, as far as they are asked for.
    fn tell_rows(&self, tally: &mut Tally) -> Result<(), TrainError> {
        let mut losses = tally.own_losses();
        if self.collective.ranks() > 1 && !losses.is_empty() {
            self.collective.sum_numbers(&mut losses)?;
            tally.take_losses(&losses);
        }
        Ok(())
    }

    /// Adds up the gradients of all ranks.
    fn add_up_gradients(&self) -> Result<(), TrainError> {
        if self.collective.ranks() > 1 {
            let gradients = &self.trained.parameters.gradients;
            let _span = span::op("add_up_ranks", || Work::on_buffer(gradients, 2));
            self.collective.all_reduce_sum(gradients)?;
        }
        Ok(())
    }

    /// The loss of all shares, those of other ranks included.
    fn add_up_losses(&self, own: &[Vec<Sums>]) -> Result<f64, TrainError> {
        let mut sum = [0.0];
        for share in own {
            let mut loss = 0.0;
            for sums in share {
                loss += sums.read()?.0;
            }
            sum[0] += loss;
        }
        self.collective.sum_numbers(&mut sum)?;
        Ok(sum[0])
    }

    /// Checks every micro-batch and counts the targets, of which there must be one.
    pub(super) fn check(&self, micro_batches: &[MicroBatch]) -> Result<u64, TrainError> {
        checks::targets_of(micro_batches, self.base.architecture())
    }

    fn check_tokens(&self, batch: &MicroBatch) -> Result<(), TrainError> {
        checks::tokens_of(batch, self.base.architecture())
    }
}

/// How the passes of a step run.
#[derive(Clone, Copy)]
struct Manner {
    in_fp32: bool,
    /// Factor on the gradients.
    gradient_scale: f32,
    /// The learning rate of updates that follow the last backward pass; `None` where they come behind it.
    followed_at: Option<f64>,
}

/// Passes that compute a step.
fn path_of<'a>(own: &'a mut ComputePath, fp32: &'a mut Option<ComputePath>, in_fp32: bool) -> &'a mut ComputePath {
    match fp32 {
        Some(path) if in_fp32 => path,
        _ => own,
    }
}

/// Position of a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerPosition {
    /// Optimizer steps taken.
    pub step: u64,
    /// Tokens trained on, padding not counted.
    pub tokens: u64,
    /// State of the dynamic loss scale; fp16 only.
    loss_scale: Option<LossScale>,
}

/// Bytes that a micro-batch's forward pass keeps for its backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedBytes {
    pub device: usize,
    /// Bytes in host memory, for a device that is not the host.
    pub host: usize,
}
