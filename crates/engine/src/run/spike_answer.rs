//! Answer of a training to a spike: it looks into it, tells what it found, and goes on, returns to a checkpoint, or ends.

use std::path::PathBuf;

use super::next::Next;
use super::outcome::{Ending, RunProgress};
use super::spike_cause::{Judgement, SpikeFacts};
use super::spike_rows::{SpikeSteps, StepRows};
use super::spike_watch::Spike;
use super::training::{AfterStep, TrainingRun};
use super::{OnSpike, RunError, checkpoint, training};
use crate::{BackOff, OverflowWatch, SpikeAnswer, SpikeReport, StepObserver};
use peft_tune_core::recipe::Precision;
use peft_tune_core::study::SpikeCause;

/// Times that a training returns to a checkpoint at half the rate, at most: to a thousandth of the rate.
const MOST_BACK_OFFS: usize = 10;
/// Steps that a report tells.
const TOLD_STEPS: usize = 8;

impl TrainingRun {
    /// Looks into a spike behind the last step, tells it and answers it.
    pub(super) fn answer_spike(
        &mut self,
        spike: Spike,
        observer: &mut dyn StepObserver,
    ) -> Result<AfterStep, RunError> {
        let is_finite = spike.is_finite;
        let mut report = self.look_into(spike)?;
        // A row that spikes does so again at any rate, and where the loss stays a number clipping deals with it.
        let is_a_row = is_finite && report.cause == SpikeCause::Data;
        let returned = match self.settings.on_spike {
            OnSpike::BackOff if !is_a_row => self.back_off(report.at_step)?,
            OnSpike::BackOff | OnSpike::GoOn => None,
        };
        report.answer = match returned {
            Some(back_off) => SpikeAnswer::BackedOff(back_off),
            None if is_finite => SpikeAnswer::WentOn,
            None => SpikeAnswer::Ended,
        };
        self.folder.note_spike(&report)?;
        observer.spike(&report);
        Ok(match report.answer {
            SpikeAnswer::BackedOff(_) => AfterStep::Returned,
            SpikeAnswer::WentOn => AfterStep::GoesOn,
            SpikeAnswer::Ended => AfterStep::Ends(Ending::Diverged {
                at_step: report.at_step,
                what: report.what,
                cause: report.cause,
                help: report.help.into_iter().next().unwrap_or_default(),
                checkpoint: self.folder.latest()?,
            }),
        })
    }

    /// Gathers the evidence and names the cause. Where the numbers are none any more, the trainer has good values of
    /// before afterwards: whatever follows is no step from where it was.
    fn look_into(&mut self, spike: Spike) -> Result<SpikeReport, RunError> {
        let at_step = self.trainer.steps();
        let recent = self.spikes.recent();
        let steps = SpikeSteps::new(at_step, spike.is_finite);
        let loss_in_fp32 = self.loss_in_fp32(at_step, spike.is_finite);
        let good_step = match spike.is_finite {
            true => None,
            false => self.good_values()?,
        };
        let rows = match spike.is_finite || good_step.is_some() {
            true => self.rows(steps)?,
            false => StepRows::unseen(&self.source, steps),
        };
        let (others, suspects) = rows.losses();
        let facts = SpikeFacts {
            recipe: &self.inputs.recipe,
            learning_rate: self.trainer.learning_rate(),
            at_step,
            total_steps: self.total_steps(),
            is_number: spike.is_finite,
            recent: &recent,
            loss_in_fp32,
            suspects: &suspects,
            others: &others,
            good_step,
            backs_off: self.settings.on_spike == OnSpike::BackOff,
        };
        let Judgement {
            cause,
            evidence,
            help,
            stands_out,
        } = facts.judge();
        let (rows, rows_left_out) = rows.listed(&self.inputs, &self.source, &stands_out, self.settings.shows_rows);
        Ok(SpikeReport {
            at_step,
            what: spike.what,
            cause,
            evidence,
            help,
            history: recent[recent.len().saturating_sub(TOLD_STEPS)..].to_vec(),
            rows,
            rows_left_out,
            answer: SpikeAnswer::Ended,
        })
    }

    /// Loss of a step's batch in F32, where the step was left out since its numbers overflowed in fp16.
    fn loss_in_fp32(&mut self, step: u64, is_finite: bool) -> Option<f64> {
        let is_alone = self.collective.ranks() == 1;
        if self.inputs.recipe.precision != Precision::Fp16 || is_finite || !is_alone {
            return None;
        }
        let batch = self.source.global_batch(step - 1);
        let loss = self.trainer.loss_in_fp32(&batch);
        loss.inspect_err(|error| tracing::warn!(%error, "the loss in float32 is not known"))
            .ok()
    }

    /// Losses of the rows of some steps, on the values as they are here. All ranks compute their share.
    fn rows(&mut self, steps: SpikeSteps) -> Result<StepRows, RunError> {
        let SpikeSteps { first, last, .. } = steps;
        self.tell(Next::Rows { first, last })?;
        self.collective.broadcast(&self.trainer.parameters().values)?;
        let micro_batch = self.inputs.recipe.batch.micro_batch;
        let rows = StepRows::look(&mut self.trainer, &self.source, steps, micro_batch);
        match rows {
            Ok(rows) => Ok(rows),
            Err(error) if self.collective.ranks() > 1 => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "the rows of a spike could not be looked at");
                Ok(StepRows::unseen(&self.source, steps))
            }
        }
    }

    /// Brings the trained values to the last good ones: those of a checkpoint, or of the beginning. Returns the step after which they
    /// were so; `None` where there are none to be had.
    fn good_values(&mut self) -> Result<Option<u64>, RunError> {
        if let Some((path, progress)) = self.folder.whole_before(self.bad_from())? {
            checkpoint::restore_values(&path, &self.trainer)?;
            return Ok(Some(progress.trainer.step));
        }
        // A whole model takes too much memory twice.
        if self.trainer.adapter_plan().is_none() || self.collective.ranks() > 1 || self.resumed_from().is_some() {
            return Ok(None);
        }
        let fresh = training::start(&self.inputs, None, self.total_steps());
        let fresh =
            fresh.inspect_err(|error| tracing::warn!(%error, "the values of the beginning cannot be made again"));
        let Ok(fresh) = fresh else {
            return Ok(None);
        };
        let values = &fresh.parameters().values;
        self.trainer.parameters().values.slice_set(values, 0, 0)?;
        Ok(Some(0))
    }

    /// Returns to the last good checkpoint, at half the rate. `None` where there is none, or the training has returned too often.
    fn back_off(&mut self, at_step: u64) -> Result<Option<BackOff>, RunError> {
        if self.progress.back_offs.len() >= MOST_BACK_OFFS {
            return Ok(None);
        }
        let Some((path, progress)) = self.checkpoint_for(at_step)? else {
            return Ok(None);
        };
        let back_off = BackOff {
            at_step,
            to_step: progress.trainer.step,
            learning_rate: self.trainer.learning_rate() / 2.0,
        };
        checkpoint::restore(&path, &mut self.trainer, &progress)?;
        self.trainer.set_learning_rate(back_off.learning_rate);
        self.progress.return_to(progress, back_off);
        // What was written behind it must not be continued from, and the rate must be known to whoever continues.
        self.folder.remove_behind(back_off.to_step)?;
        self.write_checkpoint()?;
        self.tell(Next::Return { step: back_off.to_step })?;
        self.overflows = OverflowWatch::new(self.inputs.recipe.precision);
        self.spikes.return_to(back_off.to_step, self.trainer.parameters())?;
        Ok(Some(back_off))
    }

    /// The checkpoint to return to: the latest good one, or one before it where the last return has led to no later step than this.
    fn checkpoint_for(&self, at_step: u64) -> Result<Option<(PathBuf, RunProgress)>, RunError> {
        let bad_from = self.bad_from();
        let last = self.progress.back_offs.last().filter(|last| at_step <= last.at_step);
        if let Some(last) = last
            && let Some(earlier) = self.folder.whole_before(last.to_step.min(bad_from))?
        {
            return Ok(Some(earlier));
        }
        self.folder.whole_before(bad_from)
    }

    /// The step whose values are the first that are no good. The loss of a step is that of the values before it, so the values behind the
    /// step before the first high loss give that loss again.
    fn bad_from(&self) -> u64 {
        self.trainer.steps().saturating_sub(self.spikes.high_steps())
    }
}
