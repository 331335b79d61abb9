//! What a training makes a model forget: its loss on rows that the training has nothing to do with, and how far its next-token
//! distributions go from those it had.
//!
//! The model before the training is made again for it: the same base weights, as the trial stores them, with a fresh adapter, which
//! changes nothing of what they say. What it is asked is kept for all trials that start alike.

use std::time::Instant;

use super::trial::TrialRun;
use super::unmeasured::Unmeasured;
use peft_tune_core::objective::{BASE_KL, RETAINED_LOSS_INCREASE};
use peft_tune_core::study::{Metrics, TrainPlan, with_causes};
use peft_tune_engine::data::{Document, MicroBatch, Vocabulary, evaluation_batches};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::tokenizer::Tokenizer;
use peft_tune_engine::{AnswerSettings, Control, Divergence, Generated, Prompt, TextEnd, TrainError, Trainer};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Held-out prompts that the model before the training continues.
const PROMPTS: usize = 32;
/// Most tokens of a prompt.
const PROMPT_TOKENS: usize = 256;
/// Most tokens of a continuation.
const NEW_TOKENS: usize = 32;
/// Prompts that are continued at once.
const BATCH: usize = 16;

impl TrialRun<'_> {
    /// Measures what the plan asks for of what the trained model forgot.
    pub(super) fn measure_forgetting(
        &self,
        plan: &TrainPlan,
        trainer: &mut Trainer,
        metrics: &mut Metrics,
    ) -> Result<(), Unmeasured> {
        let began = Instant::now();
        let mut before = None;
        if plan.accuracy.retained_loss {
            self.compare_retained(plan, trainer, &mut before, metrics)?;
        }
        if plan.accuracy.base_kl {
            self.compare_distributions(trainer, &mut before, metrics)?;
        }
        metrics.insert("forgetting_s", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Compares the losses on the retained rows, before the training and after it.
    fn compare_retained(
        &self,
        plan: &TrainPlan,
        trainer: &mut Trainer,
        before: &mut Option<Trainer>,
        metrics: &mut Metrics,
    ) -> Result<(), Unmeasured> {
        let Some(rows) = self.loaded.data.retained() else {
            return Ok(());
        };
        let rows = evaluation_batches(rows, self.recipe.batch.micro_batch, plan.evaluation_rows);
        let rows: Vec<MicroBatch> = rows.collect();
        let failed = |error: TrainError| Unmeasured::of("the loss on the rows of `data.retain`", error);
        let known = &self.loaded.untrained.retained_loss;
        let loss_before = match known.get() {
            Some(loss) => *loss,
            None => {
                let found = self.before_training(before).and_then(|model| model.evaluate(&rows));
                let loss = found.map_err(failed)?.loss;
                *known.get_or_init(|| loss)
            }
        };
        let loss = trainer.evaluate(&rows).map_err(failed)?.loss;
        metrics.insert("retained_loss_before", loss_before);
        metrics.insert("retained_loss", loss);
        match metrics.insert(RETAINED_LOSS_INCREASE, loss / loss_before - 1.0) {
            true => Ok(()),
            false => Err(Unmeasured::Missing(format!(
                "`{RETAINED_LOSS_INCREASE}`: the losses are {loss_before} and {loss}"
            ))),
        }
    }

    /// Compares next-token distributions on what the model before the training said.
    fn compare_distributions(
        &self,
        trainer: &mut Trainer,
        before: &mut Option<Trainer>,
        metrics: &mut Metrics,
    ) -> Result<(), Unmeasured> {
        let failed = |error: TrainError| Unmeasured::of("the comparison with the model before the training", error);
        let before = self.before_training(before).map_err(failed)?;
        let known = &self.loaded.untrained.continuations;
        let documents = match known.get() {
            Some(documents) => documents,
            None => {
                let made = self.continuations(before, trainer.steps())?;
                known.get_or_init(|| made)
            }
        };
        let batches = documents.chunks(self.recipe.batch.micro_batch.max(1));
        let batches: Vec<MicroBatch> = batches.map(MicroBatch::from_documents).collect();
        let found = Divergence::measure(trainer, before, &batches).map_err(failed)?;
        if !metrics.insert(BASE_KL, found.nats) {
            return Err(Unmeasured::Missing(format!("`{BASE_KL}` became {}", found.nats)));
        }
        metrics.insert("base_kl_tokens", found.positions as f64);
        Ok(())
    }

    /// The model as it was before the training; made where it is not there yet.
    fn before_training<'t>(&self, made: &'t mut Option<Trainer>) -> Result<&'t mut Trainer, TrainError> {
        if made.is_none() {
            let mut recipe = self.recipe.clone();
            // Where every parameter trains, this takes far less than all of them again.
            recipe.adapter.get_or_insert_default();
            let trainer = Trainer::new(self.loaded.base.open()?, &recipe, 1)?;
            *made = Some(trainer.with_collective(self.collective.clone())?);
        }
        Ok(made.as_mut().expect("it was made where it was not there"))
    }

    /// What a model says behind held-out prompts, each token the most likely one.
    fn continuations(&self, model: &mut Trainer, at_step: u64) -> Result<Vec<Document>, Unmeasured> {
        let missing = |why: String| Unmeasured::Missing(format!("`{BASE_KL}`: {why}"));
        let files = ModelFiles::resolve_weights(&self.recipe.model, &mut ());
        let files = files.map_err(|error| missing(with_causes(&error)))?;
        let vocabulary = Vocabulary::open(&files).map_err(|error| missing(with_causes(&error)))?;
        let stop_ids = vocabulary.tokenizer().map(Tokenizer::stop_ids).unwrap_or_default();
        let room = model.base().architecture().max_positions.saturating_sub(NEW_TOKENS + 1);
        let held_out = self.loaded.data.held_out();
        let prompts = held_out.beginnings(PROMPTS, room.clamp(1, PROMPT_TOKENS));
        let asked: Vec<Prompt<'_>> = prompts
            .iter()
            .map(|tokens| Prompt {
                tokens,
                stop_ids: &stop_ids,
            })
            .collect();
        let settings = AnswerSettings {
            max_tokens: NEW_TOKENS,
            batch: BATCH,
        };
        let said = model.answers(&asked, &settings, &mut || match self.is_stopped() || self.is_late() {
            true => Control::Stop,
            false => Control::Continue,
        });
        let said = said.map_err(|error| Unmeasured::of("continuing held-out prompts", error))?;
        // Whichever of several ranks was asked to.
        if said.iter().any(|one| one.end == TextEnd::Stopped) {
            return Err(self.ended_at(at_step));
        }
        let continued = prompts.iter().zip(&said);
        Ok(continued
            .map(|(prompt, said)| continuation(prompt, said, &stop_ids))
            .collect())
    }
}

/// A prompt with what was said behind it. The targets are all that was said, and the end of it where the model ended it.
fn continuation(prompt: &[u32], said: &Generated, stop_ids: &[u32]) -> Document {
    // Which of them it was changes nothing: nothing is said behind it.
    let stop = stop_ids.first().filter(|_| said.end == TextEnd::StopToken);
    let mut document = Document {
        input_ids: prompt.to_vec(),
        labels: vec![IGNORE; prompt.len()],
    };
    for token in said.tokens.iter().chain(stop) {
        document.input_ids.push(*token);
        document.labels.push(i64::from(*token));
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_what_was_said_with_its_end() {
        let targets = |tokens: &[u32], end| {
            let tokens = tokens.to_vec();
            let document = continuation(&[1, 2], &Generated { tokens, end }, &[9, 8]);
            MicroBatch::from_documents([&document]).targets
        };
        let none = IGNORE;
        assert_eq!(targets(&[5, 6], TextEnd::MaxTokens), [none, 5, 6, none]);
        assert_eq!(targets(&[5], TextEnd::StopToken), [none, 5, 9, none]);
        assert_eq!(targets(&[], TextEnd::StopToken), [none, 9, none]);
    }
}
