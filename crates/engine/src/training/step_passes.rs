//! Steps of a trainer: the passes of its micro-batches, and the update.

use super::compute_path::path_of;
use super::passes::{Lap, PassInput, PassModel};
use super::precision_switch::StepFacts;
use super::shares::{Share, add_before};
use super::stopwatch::Stopwatch;
use super::trainer::Trainer;
use super::update_pass::UpdateInput;
use crate::data::MicroBatch;
use crate::model::DropoutKey;
use crate::optimizer;
use crate::optimizer::Norm;
use crate::span;
use crate::span::{StepPhase, Work};
use crate::{StepEvent, StepSeconds, TrainError};
use peft_tune_kernels::gpu::TimedProducts;
use peft_tune_kernels::ops::loss_head::Sums;

/// First steps of a training: whoever measures steps measures none of them.
pub(super) const UNMEASURED_STEPS: u64 = 2;

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

/// How the passes of a step run.
#[derive(Clone, Copy)]
struct Manner {
    in_fp32: bool,
    /// Factor on the gradients.
    gradient_scale: f32,
    /// The learning rate of updates that follow the last backward pass; `None` where they come behind it.
    followed_at: Option<f64>,
}

impl Trainer {
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
        clock.lap(Lap::Backward)?;
        if self.collective.ranks() > 1 {
            self.add_up_gradients()?;
            clock.lap(Lap::Link)?;
        }
        let updated = self.update(&begun)?;
        clock.lap(Lap::Optimizer)?;
        // Until here a GPU has been given work without a pause; now it is waited for, once, and what it found is read.
        let laps = clock.finish()?;
        let (forward, backward) = path_of(&mut self.own, &mut self.fp32, in_fp32).passes.seconds(&laps);
        let seconds = StepSeconds {
            data: 0.0,
            forward,
            backward: backward + laps.seconds(Lap::Link),
            link: laps.seconds(Lap::Link),
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

    /// Passes that other ranks make and this one does not, whose weights it gives nevertheless.
    fn idle_passes(&self, share: Share, micro_batches: usize) -> usize {
        match self.gather {
            Some(_) => share.idle(micro_batches),
            None => 0,
        }
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

    /// Adds up the gradients of all ranks.
    fn add_up_gradients(&self) -> Result<(), TrainError> {
        let gradients = &self.trained.parameters.gradients;
        let _span = span::op("add_up_ranks", || Work::on_buffer(gradients, 2));
        Ok(self.collective.all_reduce_sum(gradients)?)
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
}
