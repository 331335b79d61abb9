//! The course of a training.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::checkpoint;
use super::folder::OutputFolder;
use super::identity::Identity;
use super::next::{self, Next};
use super::outcome::{DecidedAt, Ending, Outcome, RunProgress};
use super::spike_watch::{Spike, SpikeWatch};
use super::{OnSpike, RunError, RunInputs, RunSettings};
use crate::data::{BatchSource, MicroBatch, Prefetch, evaluation_batches};
use crate::parallel::{Alone, Collective};
use crate::{Control, Evaluation, OverflowWatch, StepEvent, StepObserver, TrainError, Trainer};
use peft_tune_core::plan::ModelPlan;
use peft_tune_core::recipe::Recipe;

/// One fine-tuning from its first step, or from a checkpoint, to its end.
pub struct TrainingRun {
    pub(super) inputs: RunInputs,
    pub(super) settings: RunSettings,
    pub(super) folder: OutputFolder,
    identity: Identity,
    pub(super) trainer: Trainer,
    /// Link with the other devices, which do what this rank does.
    pub(super) collective: Arc<dyn Collective>,
    pub(super) source: Arc<BatchSource>,
    pub(super) held_out: Vec<MicroBatch>,
    total_steps: u64,
    pub(super) progress: RunProgress,
    /// Checkpoint that the training continues from.
    resumed_from: Option<PathBuf>,
    damaged: Vec<PathBuf>,
    pub(super) overflows: OverflowWatch,
    pub(super) spikes: SpikeWatch,
    /// Answer of the observer to the step under way.
    control: Control,
}

/// Action that follows a step, besides a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AfterStep {
    GoesOn,
    Evaluates,
    /// The training returned to an earlier step, whose batches come next.
    Returned,
    Ends(Ending),
}

/// Training in an output folder that was opened.
#[expect(clippy::large_enum_variant, reason = "there is one of these in a process")]
pub enum Opened {
    /// A training that is to run.
    Run(Box<TrainingRun>),
    /// Training that is over already.
    Over(Outcome),
}

impl TrainingRun {
    /// Opens the output folder and makes everything ready for the next step.
    ///
    /// # Errors
    /// A folder that is in use or holds another training; settings that do not go together; whatever keeps the engine
    /// from starting.
    pub fn open(inputs: RunInputs, settings: RunSettings) -> Result<Opened, RunError> {
        settings.check(&inputs.recipe)?;
        let source = Arc::new(source_of(&inputs)?);
        let total_steps = source.steps(inputs.recipe.training.length);
        let schedule = inputs.recipe.check_precision_schedule(Some(total_steps));
        schedule.map_err(TrainError::from)?;
        // What cannot be trained leaves nothing in the folder.
        ModelPlan::of_recipe(inputs.base.architecture(), &inputs.recipe).map_err(TrainError::from)?;
        let identity = Identity::new(&inputs.recipe, &inputs.data, total_steps);
        let (folder, found) = OutputFolder::open(&settings, &identity, &inputs.model_folder)?;
        if let Some(outcome) = found.outcome {
            return Ok(Opened::Over(outcome));
        }
        let trainer = start(&inputs, found.checkpoint.as_ref(), total_steps)?;
        let (resumed_from, progress) = match found.checkpoint {
            Some((path, progress)) => (Some(path), progress),
            None => (None, RunProgress::new(trainer.position())),
        };
        let overflows = OverflowWatch::new(inputs.recipe.precision);
        let run = Self {
            spikes: SpikeWatch::new(trainer.parameters())?,
            held_out: held_out_of(&inputs),
            inputs,
            settings,
            folder,
            identity,
            collective: Arc::new(Alone),
            trainer,
            source,
            total_steps,
            progress,
            resumed_from,
            damaged: found.damaged,
            overflows,
            control: Control::Continue,
        };
        if run.settings.on_spike == OnSpike::BackOff && run.folder.latest()?.is_none() {
            run.write_checkpoint()?;
        }
        Ok(Opened::Run(Box::new(run)))
    }

    /// Makes the training rank 0 of several, which all begin where this one is; the others are
    /// [`FollowingRun`](super::FollowingRun)s.
    ///
    /// # Errors
    /// A rank that has other data, is gone or hangs.
    pub fn lead(mut self, collective: Arc<dyn Collective>) -> Result<Self, RunError> {
        let resumed_at = self.resumed_from.as_ref().map(|_| self.trainer.steps());
        next::meet(collective.as_ref(), &self.identity.numbers(), resumed_at)?;
        self.trainer = self.trainer.with_collective(Arc::clone(&collective))?;
        self.collective = collective;
        Ok(self)
    }

    /// The trainer as it is now.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// Steps of the whole training.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// The checkpoint that the training continues from.
    pub fn resumed_from(&self) -> Option<&PathBuf> {
        self.resumed_from.as_ref()
    }

    /// Checkpoints that were skipped since they are damaged.
    pub fn damaged(&self) -> &[PathBuf] {
        &self.damaged
    }

    /// Trains to the end, or until `observer` says stop: then the step under way is finished and a checkpoint written.
    ///
    /// # Errors
    /// Those of the engine and of the file system. A loss that is not finite is an [`Ending`].
    pub fn run(mut self, observer: &mut dyn StepObserver) -> Result<Outcome, RunError> {
        let ending = self.train(observer)?;
        self.end(ending)
    }

    /// Writes what a training that has ended leaves behind.
    pub(super) fn end(self, ending: Ending) -> Result<Outcome, RunError> {
        self.tell(Next::End)?;
        let several = self.inputs.recipe.training.evaluate_every.is_some();
        let outcome = Outcome {
            progress: self.progress.clone(),
            total_steps: self.total_steps,
            best_folder: self.folder.kept_best().filter(|_| several),
            ending,
        };
        if matches!(outcome.ending, Ending::Finished | Ending::StoppedEarly { .. }) {
            self.folder.finish(&self.inputs, &self.trainer, &outcome)?;
        }
        Ok(outcome)
    }

    fn train(&mut self, observer: &mut dyn StepObserver) -> Result<Ending, RunError> {
        let mut batches = self.batches()?;
        while self.trainer.steps() < self.total_steps {
            let event = self.step(&mut batches)?;
            let mut after = self.stepped(&event, observer)?;
            if after == AfterStep::Evaluates {
                self.tell(Next::Evaluate)?;
                let evaluation = self.trainer.evaluate(&self.held_out)?;
                after = self.evaluated(&evaluation, observer)?;
            }
            match self.step_over(after, observer)? {
                AfterStep::Ends(ending) => return Ok(ending),
                AfterStep::Returned => batches = self.batches()?,
                AfterStep::GoesOn | AfterStep::Evaluates => {}
            }
        }
        Ok(Ending::Finished)
    }

    /// Batches of every step from the next one on.
    pub(super) fn batches(&self) -> Result<Prefetch, RunError> {
        Ok(Prefetch::start(
            Arc::clone(&self.source),
            self.trainer.steps()..self.total_steps,
        )?)
    }

    /// Takes a step of the trainer into account, and decides what follows.
    pub(super) fn stepped(
        &mut self,
        event: &StepEvent,
        observer: &mut dyn StepObserver,
    ) -> Result<AfterStep, RunError> {
        let is_spike = self.spikes.take(event, self.trainer.parameters())?;
        if !event.loss.is_finite() {
            // What the step before left behind gives no loss, so a checkpoint of it is of no use.
            self.folder.remove_checkpoint(event.step - 1)?;
            return self.diverged(format!("the training loss became {}", event.loss), observer);
        }
        if self.overflows.has_diverged(event.grad_norm) {
            return self.diverged(
                format!("the norm of the gradients became {}", event.grad_norm),
                observer,
            );
        }
        self.progress.last_loss = Some(event.loss);
        self.control = self.telling(|| observer.step(event));
        if is_spike {
            let spike = Spike {
                what: format!("the training loss rose to {:.4}", event.loss),
                is_finite: true,
            };
            let after = self.answer_spike(spike, observer)?;
            if after == AfterStep::Returned {
                return Ok(after);
            }
        }
        Ok(match self.is_due(self.inputs.recipe.training.evaluate_every) {
            true => AfterStep::Evaluates,
            false => AfterStep::GoesOn,
        })
    }

    /// Takes an evaluation behind a step into account, and decides what follows.
    pub(super) fn evaluated(
        &mut self,
        evaluation: &Evaluation,
        observer: &mut dyn StepObserver,
    ) -> Result<AfterStep, RunError> {
        if !evaluation.loss.is_finite() {
            return self.diverged(format!("the held-out loss became {}", evaluation.loss), observer);
        }
        let is_best = self.progress.take_evaluation(evaluation);
        if is_best && self.inputs.recipe.training.evaluate_every.is_some() {
            self.folder.keep_best(&self.inputs, &self.trainer)?;
        }
        if self.telling(|| observer.evaluation(evaluation)) == Control::Stop {
            self.control = Control::Stop;
        }
        Ok(match self.is_out_of_patience() {
            true => AfterStep::Ends(Ending::StoppedEarly {
                evaluations: self.progress.evaluations_since_best,
            }),
            false => AfterStep::GoesOn,
        })
    }

    /// The end of a step: writes a checkpoint where one is due, and says what follows: the next step, that of a checkpoint, or the end.
    pub(super) fn step_over(
        &mut self,
        after: AfterStep,
        observer: &mut dyn StepObserver,
    ) -> Result<AfterStep, RunError> {
        if let AfterStep::Ends(_) | AfterStep::Returned = after {
            return Ok(after);
        }
        let stops = self.control == Control::Stop && self.trainer.steps() < self.total_steps;
        if stops || self.is_due(Some(self.checkpoint_every())) {
            let started = Instant::now();
            let written = self.checkpoint()?;
            self.progress.beside.checkpoint_s += started.elapsed().as_secs_f64();
            let Some(checkpoint) = written else {
                return self.diverged("a trained value became infinite or NaN".to_owned(), observer);
            };
            if stops {
                return Ok(AfterStep::Ends(Ending::Interrupted { checkpoint }));
            }
        }
        Ok(AfterStep::GoesOn)
    }

    /// Asks the observer, and counts its time.
    fn telling(&mut self, tell: impl FnOnce() -> Control) -> Control {
        let started = Instant::now();
        let control = tell();
        self.progress.beside.logging_s += started.elapsed().as_secs_f64();
        control
    }

    fn step(&mut self, batches: &mut Prefetch) -> Result<StepEvent, RunError> {
        let waiting = Instant::now();
        let batch = batches.next().expect("there is data for every step of the training");
        let data = waiting.elapsed().as_secs_f64();
        self.tell(Next::Step)?;
        let event = self.trainer.step(&batch)?;
        Ok(self.took_step(event, data))
    }

    /// Takes note of other trainings in the same passes.
    pub(super) fn beside(&mut self, others: usize) {
        self.progress.shared_with = self.progress.shared_with.max(others);
    }

    /// Counts a step, for whose data `data` seconds were waited.
    pub(super) fn took_step(&mut self, mut event: StepEvent, data: f64) -> StepEvent {
        event.seconds.data = data;
        event.seconds.total += data;
        self.progress.trainer = self.trainer.position();
        if let Some(decision) = event.precision_decision {
            let step = event.step;
            self.progress.precision_decisions.push(DecidedAt { step, decision });
        }
        self.progress.seconds += event.seconds.total;
        event
    }

    /// Tells the other ranks what comes next.
    pub(super) fn tell(&self, next: Next) -> Result<(), RunError> {
        Ok(next.tell(self.collective.as_ref())?)
    }

    /// Writes a checkpoint, unless there are values in it that are not finite.
    fn checkpoint(&self) -> Result<Option<PathBuf>, RunError> {
        match self.values_are_finite()? {
            true => Ok(Some(self.write_checkpoint()?)),
            false => Ok(None),
        }
    }

    /// Writes a checkpoint of where the training is.
    pub(super) fn write_checkpoint(&self) -> Result<PathBuf, RunError> {
        let keep = match self.settings.on_spike {
            // The values of the last one may be those that spike.
            OnSpike::BackOff => self.settings.keep_checkpoints.max(2),
            OnSpike::GoOn => self.settings.keep_checkpoints,
        };
        self.folder
            .checkpoint(&self.inputs, &self.trainer, &self.progress, keep)
    }

    fn diverged(&mut self, what: String, observer: &mut dyn StepObserver) -> Result<AfterStep, RunError> {
        let spike = Spike { what, is_finite: false };
        self.answer_spike(spike, observer)
    }

    /// Whether something that happens every N steps, and at the end, is to happen now.
    fn is_due(&self, every: Option<u64>) -> bool {
        let step = self.trainer.steps();
        step == self.total_steps || every.is_some_and(|every| step.is_multiple_of(every.max(1)))
    }

    fn is_out_of_patience(&self) -> bool {
        let since_best = self.progress.evaluations_since_best;
        self.settings.patience.is_some_and(|patience| since_best >= patience)
    }

    fn checkpoint_every(&self) -> u64 {
        self.settings.checkpoint_every.unwrap_or(self.total_steps.div_ceil(10))
    }

    fn values_are_finite(&self) -> candle_core::Result<bool> {
        // Zero times what is not finite is NaN, and so is any sum with it.
        let zero = self.trainer.parameters().values.affine(0.0, 0.0)?.sum_all()?;
        Ok(zero.to_scalar::<f32>()? == 0.0)
    }
}

/// A trainer at the beginning, or where the checkpoint was written.
pub(super) fn start(
    inputs: &RunInputs,
    checkpoint: Option<&(PathBuf, RunProgress)>,
    total_steps: u64,
) -> Result<Trainer, RunError> {
    let base = Arc::clone(&inputs.base);
    let Some((path, progress)) = checkpoint else {
        return Ok(Trainer::new(base, &inputs.recipe, total_steps)?);
    };
    let mut trainer = Trainer::new(base, &started_from(path, &inputs.recipe), total_steps)?;
    checkpoint::restore(path, &mut trainer, progress)?;
    Ok(trainer)
}

/// The recipe with the checkpoint's adapter in the place of the one that the training began with, which need no longer be there. What the
/// base model's embeddings are to the adapter is known from its files alone.
fn started_from(checkpoint: &Path, recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    if let Some(adapter) = &mut recipe.adapter {
        adapter.adapter_init = Some(checkpoint.to_owned());
    }
    recipe
}

/// The held-out rows that are evaluated.
pub(super) fn held_out_of(inputs: &RunInputs) -> Vec<MicroBatch> {
    let rows = inputs.recipe.batch.micro_batch;
    let limit = inputs.recipe.training.evaluation_rows;
    evaluation_batches(inputs.data.held_out(), rows, limit).collect()
}

/// The training rows, in the order of their steps.
pub(super) fn source_of(inputs: &RunInputs) -> Result<BatchSource, RunError> {
    Ok(BatchSource::of_recipe(&inputs.data, &inputs.recipe)?)
}
