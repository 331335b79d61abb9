//! Evaluations of a trainer.

use std::ops::Range;

use candle_core::DType;

use super::passes::Lap;
use super::row_watch::{EvaluatedRows, RowWatch};
use super::spread::Spread;
use super::stopwatch::Stopwatch;
use super::tally::{Tally, order};
use super::trainer::Trainer;
use crate::data::MicroBatch;
use crate::model::{Decoder, Keep, Stream};
use crate::span;
use crate::span::StepPhase;
use crate::{Control, Evaluation, TrainError};

impl Trainer {
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

    /// Mean loss per target token with activations in F32, on the frozen weights as they are; changes nothing. For one device that holds
    /// all weights.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`].
    pub fn loss_in_fp32(&mut self, micro_batches: &[MicroBatch]) -> Result<f64, TrainError> {
        let targets = self.check(micro_batches)?;
        let decoder = Decoder::in_dtype(&self.base, &self.trained.trainables(), DType::F32)?;
        let mut sum = 0.0;
        for batch in micro_batches {
            self.ropes.prepare(batch.longest())?;
            let stream = Stream::new(batch, None, None, self.base.device())?;
            let (normed, _) = decoder.forward(&stream, &self.ropes, Keep::Nothing)?;
            sum += decoder.loss(&stream, &normed)?.sums.read()?.0;
        }
        Ok(sum / targets as f64)
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
}
