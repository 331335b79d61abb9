//! Measurements of a trial's trained model beside the loss: what the precision keeps, what a training in F32 reaches,
//! what is forgotten, and answers.
//!
//! The measurements happen behind the training and take none of the setting's memory or throughput; their
//! seconds are the trial's.

use std::sync::Arc;
use std::time::Instant;

use super::TrialEvent;
use super::interruption::Interruption;
use super::scorer::ScorerError;
use super::scoring::{AnsweringModel, ScoringError, score};
use super::trial::{Run, TrialRun};
use super::trial_inputs::Fp32Key;
use super::trial_schedule::schedule_in_part;
use super::unmeasured::Unmeasured;
use peft_tune_core::objective::{
    LOSS_BEFORE_DENSE, LOSS_KEPT_PERCENT, TOKEN_ACCURACY, TOKEN_ACCURACY_LOST_PERCENT, TOP1_AGREEMENT_PERCENT,
};
use peft_tune_core::recipe::{Precision, Sharding, WeightSparsity};
use peft_tune_core::score::ScorePlan;
use peft_tune_core::study::{FailReason, Metrics, Phase, TrainPlan, with_causes};
use peft_tune_engine::data::{MicroBatch, Prefetch};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::{BaseModel, LossKept, TrainError, Trainer};

impl TrialRun<'_> {
    /// Measures what `plan` asks for beside the loss. A failure costs the trial these metrics and nothing else, where
    /// no objective or constraint is among them.
    pub(super) fn measure_accuracy(
        &self,
        plan: &TrainPlan,
        mut run: Run,
        held_out: &[MicroBatch],
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let accuracy = &plan.accuracy;
        let is_sparse = !self.recipe.weight_sparsity.is_none();
        if !is_sparse && accuracy.is_off() {
            return Ok(());
        }
        emit(TrialEvent::Phase {
            number: self.request.number,
            phase: Phase::Evaluate,
        });
        // The memory of all this is none of the setting's.
        self.loaded.memory.set_limit(None);
        let settle = |done: Result<(), Unmeasured>| match done {
            Ok(()) => Ok(()),
            Err(Unmeasured::Ends(interruption)) => Err(interruption),
            Err(Unmeasured::Missing(message)) if accuracy.is_required => {
                Err(Interruption::Failed(FailReason::Crashed {
                    phase: Phase::Evaluate,
                    message,
                }))
            }
            Err(Unmeasured::Missing(message)) => {
                tracing::warn!("{message}");
                Ok(())
            }
        };
        if let Some(score) = &accuracy.score {
            settle(self.score(score, &mut run.trainer, metrics))?;
        }
        if accuracy.check {
            settle(self.compare_weights(&mut run.trainer, held_out, metrics))?;
        }
        if accuracy.retained_loss || accuracy.base_kl {
            settle(self.measure_forgetting(plan, &mut run.trainer, metrics))?;
        }
        // A second training need not stand beside the first in memory.
        drop(run);
        if is_sparse {
            settle(self.measure_dense(held_out, metrics))?;
        }
        if accuracy.fp32_training {
            settle(self.compare_training(plan, held_out, metrics))?;
        }
        Ok(())
    }

    /// The loss of the dense base model before any training, measured once in this process.
    fn measure_dense(&self, held_out: &[MicroBatch], metrics: &mut Metrics) -> Result<(), Unmeasured> {
        let known = &self.loaded.untrained_dense.loss;
        if known.get().is_none() {
            let loss = self.dense_loss(held_out);
            let loss = loss.map_err(|error| Unmeasured::of("the loss of the dense base model", error))?;
            known.get_or_init(|| loss);
        }
        if let Some(loss) = known.get() {
            metrics.insert(LOSS_BEFORE_DENSE, *loss);
        }
        Ok(())
    }

    fn dense_loss(&self, held_out: &[MicroBatch]) -> Result<f64, TrainError> {
        let mut recipe = self.recipe.clone();
        recipe.weight_sparsity = WeightSparsity::None;
        let base = BaseModel::load(&self.loaded.folder, recipe.precision, self.loaded.base.device())?;
        let trainer = Trainer::new(Arc::new(base), &recipe, 1)?;
        let mut trainer = trainer.with_collective(self.collective.clone())?;
        Ok(trainer.evaluate(held_out)?.loss)
    }

    /// Compares the trained model with the same on F32 base weights.
    fn compare_weights(
        &self,
        trainer: &mut Trainer,
        held_out: &[MicroBatch],
        metrics: &mut Metrics,
    ) -> Result<(), Unmeasured> {
        let began = Instant::now();
        let kept = self.loss_kept(trainer, held_out);
        let kept = kept.map_err(|error| Unmeasured::of("the comparison with fp32 base weights", error))?;
        metrics.insert("loss_fp32", kept.loss_f32);
        metrics.insert(LOSS_KEPT_PERCENT, kept.percent());
        metrics.insert(TOP1_AGREEMENT_PERCENT, 100.0 * kept.agreement);
        metrics.insert("accuracy_check_s", began.elapsed().as_secs_f64());
        Ok(())
    }

    fn loss_kept(&self, trainer: &mut Trainer, held_out: &[MicroBatch]) -> Result<LossKept, TrainError> {
        let mut recipe = self.recipe.in_fp32();
        recipe.batch.sharding = Sharding::None;
        let base = BaseModel::load(&self.loaded.folder, Precision::Fp32, trainer.base().device())?;
        let mut reference = Trainer::new(Arc::new(base), &recipe, 1)?;
        LossKept::measure(trainer, &mut reference, held_out)
    }

    /// Compares the token accuracy with that of the same recipe trained in F32, from the same seed on the same rows.
    fn compare_training(
        &self,
        plan: &TrainPlan,
        held_out: &[MicroBatch],
        metrics: &mut Metrics,
    ) -> Result<(), Unmeasured> {
        let Some(own) = metrics.value(TOKEN_ACCURACY) else {
            return Ok(());
        };
        let began = Instant::now();
        let (reference, seconds) = match self.recipe.in_fp32() == *self.recipe {
            true => (own, 0.0),
            false => (self.fp32_accuracy(plan, held_out)?, began.elapsed().as_secs_f64()),
        };
        metrics.insert("token_accuracy_fp32", reference);
        metrics.insert("fp32_training_s", seconds);
        if reference <= 0.0 {
            return Err(Unmeasured::Missing(
                "the training in fp32 finds none of the held-out tokens: nothing can be lost of that; train longer, or \
                 evaluate on more rows"
                    .to_owned(),
            ));
        }
        metrics.insert(TOKEN_ACCURACY_LOST_PERCENT, 100.0 * (reference - own) / reference);
        Ok(())
    }

    /// The token accuracy of the recipe trained in F32; trained once in this process.
    fn fp32_accuracy(&self, plan: &TrainPlan, held_out: &[MicroBatch]) -> Result<f64, Unmeasured> {
        let mut recipe = self.recipe.in_fp32();
        recipe.batch.sharding = Sharding::None;
        recipe.training.seed = recipe.training.seed.wrapping_add(plan.seed_offset);
        let key = Fp32Key {
            training: recipe.loss_key(),
            length: plan.length,
            evaluation_rows: plan.evaluation_rows,
        };
        let known = self
            .fp32_accuracies
            .borrow()
            .iter()
            .find(|(one, _)| *one == key)
            .map(|(_, value)| *value);
        if let Some(known) = known {
            return Ok(known);
        }
        let source = Arc::new(self.source(&recipe).map_err(Unmeasured::Ends)?);
        let steps = source.steps(plan.length);
        recipe.schedule = schedule_in_part(&recipe.schedule, steps, source.steps(recipe.training.length));
        let failed = |error| Unmeasured::of("the training in fp32", error);
        let device = self.loaded.base.device();
        let base = BaseModel::load(&self.loaded.folder, Precision::Fp32, device).map_err(failed)?;
        let trainer = Trainer::new(Arc::new(base), &recipe, steps);
        let trainer = trainer.and_then(|trainer| trainer.with_collective(self.collective.clone()));
        let mut trainer = trainer.map_err(failed)?;
        let batches = Prefetch::start(source, 0..steps);
        for batch in batches.map_err(|error| Unmeasured::Missing(format!("the training in fp32: {error}")))? {
            self.wait(self.control.wait_while_held(self.request.number));
            trainer.step(&batch).map_err(failed)?;
            self.ends_now(trainer.steps())?;
        }
        let accuracy = trainer.evaluate(held_out).map_err(failed)?.accuracy;
        self.fp32_accuracies.borrow_mut().push((key, accuracy));
        Ok(accuracy)
    }

    /// Ends the trial where it was asked to stop or its time is up, on all devices alike.
    fn ends_now(&self, at_step: u64) -> Result<(), Unmeasured> {
        let mut ends = [
            f64::from(u8::from(self.is_stopped())),
            f64::from(u8::from(self.is_late())),
        ];
        let shared = self.collective.highest(&mut ends);
        shared.map_err(|error| Unmeasured::of("the training in fp32", error.into()))?;
        match ends {
            [stopped, _] if stopped > 0.0 => Err(Unmeasured::Ends(Interruption::Stopped { at_step })),
            [_, late] if late > 0.0 => Err(Unmeasured::Ends(self.timed_out())),
            _ => Ok(()),
        }
    }

    /// Has the model answer held-out prompts, and scores the answers. Devices share the prompts out, and the first one has them scored.
    fn score(&self, plan: &ScorePlan, trainer: &mut Trainer, metrics: &mut Metrics) -> Result<(), Unmeasured> {
        let files = ModelFiles::resolve_weights(&self.recipe.model, &mut ());
        let files = files.map_err(|error| Unmeasured::Missing(format!("`score`: {}", with_causes(&error))))?;
        let at_step = trainer.steps();
        let model = AnsweringModel {
            trainer,
            held_out: self.loaded.data.held_out(),
            files: &files,
        };
        let command = plan.command.as_ref().filter(|_| self.collective.rank() == 0);
        let stops = || self.is_stopped() || self.is_late();
        match score(plan, model, command, &stops, metrics) {
            Ok(()) => Ok(()),
            Err(ScoringError::Stopped | ScoringError::Scorer(ScorerError::Stopped)) => Err(self.ended_at(at_step)),
            Err(ScoringError::Generation(error)) => Err(Unmeasured::of("answering held-out prompts", error)),
            Err(error) => Err(Unmeasured::Missing(with_causes(&error))),
        }
    }

    /// The end of a trial that was stopped while its model answered: it is late, or was asked to stop.
    pub(super) fn ended_at(&self, at_step: u64) -> Unmeasured {
        Unmeasured::Ends(if self.is_late() && !self.is_stopped() {
            self.timed_out()
        } else {
            Interruption::Stopped { at_step }
        })
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.control.is_stopped(self.request.number)
    }

    /// Whether the trial has taken longer than it may.
    pub(super) fn is_late(&self) -> bool {
        let limit = self.request.time_limit_s;
        limit.is_some_and(|limit| self.after_s() > limit)
    }

    pub(super) fn timed_out(&self) -> Interruption {
        Interruption::Failed(FailReason::TimedOut {
            phase: Phase::Evaluate,
            after_s: self.after_s(),
        })
    }

    /// Seconds since the trial began, without those in which it waited for neighbours.
    fn after_s(&self) -> f64 {
        self.started.elapsed().saturating_sub(self.waited.get()).as_secs_f64()
    }
}
