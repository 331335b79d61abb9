//! Several trainings on one base whose rows go through the frozen weights together.
//!
//! Each is a [`Trainer`] with its own adapter, optimizer, schedule and position, and steps here to the values that it would step to
//! alone; only the passes are shared ([`crate::model::together`]). Trainings may be at different steps: each brings the micro-batches of
//! its own. The n-th micro-batches of all go through the model at once.
//!
//! Passes are launched op by op: there is no CUDA graph of several trainings.

use std::sync::Arc;

use super::passes::Lap;
use super::row_watch::{EvaluatedRows, RowWatch};
use super::shares::Share;
use super::step_passes::{BegunStep, UNMEASURED_STEPS};
use super::stopwatch::Stopwatch;
use super::tally::{Tally, order};
use super::trained_set::TrainedSet;
use crate::base::BaseModel;
use crate::data::MicroBatch;
use crate::model::{AdapterPass, Decoder, Keep, RopeTables, RowPart, Stream};
use crate::parallel::Alone;
use crate::span;
use crate::span::StepPhase;
use crate::{Control, Evaluation, StepEvent, StepSeconds, TogetherError, TrainError, Trainer};
use peft_tune_core::recipe::Checkpointing;
use peft_tune_kernels::gpu::TimedProducts;
use peft_tune_kernels::ops::loss_head::Sums;

/// The shared passes of some trainings.
pub struct Together {
    base: Arc<BaseModel>,
    decoder: Decoder,
    ropes: RopeTables,
    checkpointing: Checkpointing,
}

/// The micro-batches that go through the model at once.
#[derive(Default)]
struct Round {
    batch: MicroBatch,
    /// Parts of the trainings, one for each, empty where it has no more micro-batches.
    parts: Vec<RowPart>,
    /// Factors on the gradients of the loss sums.
    scales: Vec<Option<f32>>,
}

impl Round {
    fn new() -> Self {
        Self {
            batch: MicroBatch::new(),
            ..Self::default()
        }
    }

    /// Adds the rows of the next training.
    fn push(&mut self, batch: Option<&MicroBatch>, pass: AdapterPass, scale: Option<f32>) {
        let first = self.batch.tokens();
        if let Some(batch) = batch {
            self.batch.append(batch);
        }
        let rows = first..self.batch.tokens();
        self.parts.push(RowPart { rows, pass });
        self.scales.push(scale);
    }
}

/// The held-out rows of one training.
struct HeldOut<'a> {
    batches: &'a [MicroBatch],
    /// Micro-batches by round.
    order: Vec<usize>,
    tally: Tally,
}

impl<'a> HeldOut<'a> {
    fn new(batches: &'a [MicroBatch], watch: Option<&dyn RowWatch>) -> Self {
        let is_spread = watch.is_some_and(|watch| watch.next_look().is_some());
        Self {
            order: order(batches.len(), is_spread),
            tally: Tally::new(batches, watch.is_some()),
            batches,
        }
    }

    fn batch(&self, round: usize) -> Option<&'a MicroBatch> {
        self.order.get(round).map(|index| &self.batches[*index])
    }

    /// Takes in what a round found; it may have been the last.
    fn take(&mut self, round: usize, sums: &Sums, watch: &mut Option<&mut dyn RowWatch>) -> Result<(), TrainError> {
        let index = self.order[round];
        self.tally.take(index, sums)?;
        self.tally.pass(index..index + 1);
        if let Some(watch) = watch
            && self.tally.is_looked_at(&**watch)
            && self.tally.shown_to(&mut **watch) == Control::Stop
        {
            self.order.truncate(round + 1);
        }
        Ok(())
    }

    fn end(self, trainer: &Trainer, seconds: f64) -> EvaluatedRows {
        let (correct, spread) = self.tally.sums(&Share::here(&Alone, 1));
        EvaluatedRows {
            evaluation: trainer.evaluated(&spread, correct, self.tally.target_tokens(), seconds),
            rows: self.tally.row_losses(),
        }
    }
}

impl Together {
    /// Refuses a base model whose layers have no form for rows of several trainings.
    ///
    /// # Errors
    /// Layers in which rows of different trainings would meet, or whose adapters lie beside the linear layers.
    pub fn check_base(base: &BaseModel) -> Result<(), TrainError> {
        let architecture = base.architecture();
        let family = architecture.family.row().name;
        let what = match (architecture.experts.is_some(), architecture.layer_inputs.is_some()) {
            (true, _) => "experts",
            (_, true) => "inputs of their own",
            _ => return Ok(()),
        };
        Err(TogetherError::NoGroups { family, what }.into())
    }

    /// The passes of `trainers`, in this order. Whoever joins or leaves needs new ones; they cost no more than the objects of the layers.
    ///
    /// # Errors
    /// Trainings that share no base, differ in what they must agree on or train what they would share; a family whose layers have no
    /// form for rows of several trainings.
    pub fn new(trainers: &[&Trainer]) -> Result<Self, TrainError> {
        let [first, ..] = trainers else {
            let nobody = "there is no training to share passes".to_owned();
            return Err(candle_core::Error::Msg(nobody).into());
        };
        let base = first.base();
        Self::check_base(base)?;
        for trainer in trainers {
            trainer.recipe.check_in_group()?;
            trainer.recipe.check_shares_base(&first.recipe)?;
            if !Arc::ptr_eq(trainer.base(), base) {
                return Err(TogetherError::OtherBase.into());
            }
        }
        let nothing = TrainedSet::nothing(base)?;
        let members: Vec<&Decoder> = trainers.iter().map(|trainer| &trainer.own.decoder).collect();
        Ok(Self {
            decoder: Decoder::new(base, &nothing.trainables())?.joined(&members)?,
            ropes: RopeTables::new(&base.architecture().ropes, base.device()),
            checkpointing: first.recipe.gradient_checkpointing,
            base: Arc::clone(base),
        })
    }

    /// Returns the passes that are kept, or new ones of `trainers` where nothing is.
    ///
    /// # Errors
    /// Errors of [`Together::new`].
    pub fn kept<'p, 't>(
        kept: &'p mut Option<Self>,
        trainers: impl Iterator<Item = &'t Trainer>,
    ) -> Result<&'p mut Self, TrainError> {
        let passes = match kept.take() {
            Some(passes) => passes,
            None => Self::new(&trainers.collect::<Vec<_>>())?,
        };
        Ok(kept.insert(passes))
    }

    /// Takes one optimizer step of each of `trainers`, which are those that this was made of, on its own global batch.
    /// A training that cannot take its step has its error, and the others step all the same. The seconds of a step are
    /// those of all.
    ///
    /// # Errors
    /// What keeps all of them from stepping: memory, the device.
    pub fn step(
        &mut self,
        trainers: &mut [&mut Trainer],
        global_batches: &[&[MicroBatch]],
    ) -> Result<Vec<Result<StepEvent, TrainError>>, TrainError> {
        let _timed = TimedProducts::begin(trainers.iter().any(|trainer| trainer.steps() < UNMEASURED_STEPS));
        let mut clock = Stopwatch::start(self.base.device())?;
        let mut begun = Vec::with_capacity(trainers.len());
        for (trainer, batches) in trainers.iter_mut().zip(global_batches) {
            let targets = trainer.check(batches);
            begun.push(targets.and_then(|targets| trainer.begin_step(batches, targets, &mut clock)));
        }
        let mut sums: Vec<Vec<Sums>> = vec![Vec::new(); trainers.len()];
        let mut first_tokens = vec![0; trainers.len()];
        for round in 0..most(global_batches.iter().copied()) {
            let mut all = Round::new();
            for (index, trainer) in trainers.iter().enumerate() {
                let batch = global_batches[index].get(round).filter(|_| begun[index].is_ok());
                let pass = AdapterPass {
                    dropout: trainer.dropout(first_tokens[index]),
                    ..AdapterPass::default()
                };
                first_tokens[index] += batch.map_or(0, |batch| batch.tokens() as u64);
                let scale = begun[index].as_ref().ok().map(|begun: &BegunStep| begun.gradient_scale);
                all.push(batch, pass, scale);
            }
            for (sums, found) in sums.iter_mut().zip(self.passes(all, &mut clock)?) {
                sums.extend(found);
            }
        }
        let mut updated = Vec::with_capacity(trainers.len());
        for (trainer, begun) in trainers.iter_mut().zip(begun) {
            let update = begun.and_then(|begun| Ok((trainer.update(&begun)?, begun)));
            updated.push(update);
        }
        clock.lap(Lap::Optimizer)?;
        let laps = clock.finish()?;
        let seconds = StepSeconds {
            data: 0.0,
            forward: laps.seconds(Lap::Forward),
            backward: laps.seconds(Lap::Backward),
            // Trainings that share passes have one device.
            link: 0.0,
            optimizer: laps.seconds(Lap::Optimizer),
            total: laps.total_s,
        };
        let all = trainers.iter_mut().zip(updated).zip(sums);
        Ok(all
            .map(|((trainer, step), sums)| {
                step.and_then(|(updated, begun)| trainer.end_step(begun, updated, &[sums], seconds))
            })
            .collect())
    }

    /// Loss and accuracy over held-out micro-batches of those trainings that have some here, without dropout; changes nothing. The
    /// seconds are those of all.
    ///
    /// # Errors
    /// Errors of [`Together::step`].
    pub fn evaluate(
        &mut self,
        trainers: &[&Trainer],
        held_out: &[Option<&[MicroBatch]>],
    ) -> Result<Vec<Option<Result<Evaluation, TrainError>>>, TrainError> {
        let mut nobody: Vec<Option<&mut dyn RowWatch>> = trainers.iter().map(|_| None).collect();
        let found = self.evaluate_rows(trainers, held_out, &mut nobody)?;
        let evaluation = |one: Result<EvaluatedRows, TrainError>| one.map(|one| one.evaluation);
        Ok(found.into_iter().map(|one| one.map(evaluation)).collect())
    }

    /// Evaluates as [`Together::evaluate`] does, with the loss of each row of those trainings that have one of
    /// `watches`, which may end its evaluation before all rows are evaluated.
    ///
    /// # Errors
    /// Errors of [`Together::step`].
    pub fn evaluate_rows(
        &mut self,
        trainers: &[&Trainer],
        held_out: &[Option<&[MicroBatch]>],
        watches: &mut [Option<&mut dyn RowWatch>],
    ) -> Result<Vec<Option<Result<EvaluatedRows, TrainError>>>, TrainError> {
        let clock = Stopwatch::<Lap>::start(self.base.device())?;
        let _span = span::phase(StepPhase::Evaluation);
        let targets = trainers.iter().zip(held_out);
        let mut due: Vec<Option<Result<HeldOut<'_>, TrainError>>> = targets
            .zip(watches.iter())
            .map(|((trainer, batches), watch)| {
                let batches = (*batches)?;
                Some(trainer.check(batches).map(|_| HeldOut::new(batches, watch.as_deref())))
            })
            .collect();
        for round in 0..most(held_out.iter().map(|batches| batches.unwrap_or_default())) {
            let mut all = Round::new();
            for one in &due {
                let held = one.as_ref().and_then(|one| one.as_ref().ok());
                let batch = held.and_then(|held| held.batch(round));
                all.push(batch, AdapterPass::default(), None);
            }
            for ((one, sums), watch) in due.iter_mut().zip(self.losses(all)?).zip(watches.iter_mut()) {
                if let (Some(Ok(held)), Some(sums)) = (one, sums) {
                    held.take(round, &sums, watch)?;
                }
            }
        }
        let seconds = clock.finish()?.total_s;
        let all = trainers.iter().zip(due);
        Ok(all
            .map(|(trainer, held)| Some(held?.map(|held| held.end(trainer, seconds))))
            .collect())
    }

    /// Runs forward and backward pass of one round: adds the gradients of all, and returns what the loss head found for
    /// each.
    fn passes(&mut self, round: Round, clock: &mut Stopwatch<Lap>) -> Result<Vec<Option<Sums>>, TrainError> {
        let Round { batch, parts, scales } = round;
        if batch.tokens() == 0 {
            return Ok(Vec::new());
        }
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(&batch, None, None, self.base.device())?.in_parts(parts);
        let span = span::phase(StepPhase::Forward);
        let keep = Keep::ForBackward(self.checkpointing);
        let (normed, tape) = self.decoder.forward(&stream, &self.ropes, keep)?;
        let (sums, gradients) = self.decoder.losses_of_parts(&stream, &normed, &scales)?;
        drop(normed);
        clock.lap(Lap::Forward)?;
        drop(span);
        let _span = span::phase(StepPhase::Backward);
        if let Some(d_normed) = gradients {
            // Nobody updates before the step of all is over.
            let follower = &mut |_| Ok(());
            self.decoder
                .backward(&stream, &self.ropes, (tape, d_normed), follower)?;
        }
        clock.lap(Lap::Backward)?;
        Ok(sums)
    }

    /// The losses of one round.
    fn losses(&mut self, round: Round) -> Result<Vec<Option<Sums>>, TrainError> {
        let Round { batch, parts, scales } = round;
        if batch.tokens() == 0 {
            return Ok(Vec::new());
        }
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(&batch, None, None, self.base.device())?.in_parts(parts);
        let (normed, _) = self.decoder.forward(&stream, &self.ropes, Keep::Nothing)?;
        Ok(self.decoder.losses_of_parts(&stream, &normed, &scales)?.0)
    }
}

/// Micro-batches of whoever has most.
fn most<'a>(all: impl Iterator<Item = &'a [MicroBatch]>) -> usize {
    all.map(<[MicroBatch]>::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::Device;

    use super::*;
    use crate::data::Document;
    use peft_tune_core::architecture::Architecture;
    use peft_tune_core::recipe::{AdapterSettings, DataSettings, OptimizerKind, Precision, Recipe};

    /// A model whose last two layers read keys and values of the two before them.
    const SHARED_KEYS: &str = r#"{"model_type": "gemma4_text", "vocab_size": 37, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 16,
        "max_position_embeddings": 64, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2, "layer_types":
        ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}"#;

    fn batch(seed: u32) -> MicroBatch {
        let input_ids: Vec<u32> = (0..12).map(|place| (place * 7 + seed) % 37).collect();
        let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
        MicroBatch::from_documents(&[Document { input_ids, labels }])
    }

    fn gradients(trainer: &Trainer) -> Vec<u32> {
        let gradients = trainer.parameters().gradients.to_vec1::<f32>().unwrap();
        gradients.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn readers_of_shared_keys_pass_on_the_gradients_that_they_pass_on_alone() {
        let architecture = Architecture::from_json(Path::new("config.json"), SHARED_KEYS).unwrap();
        let base = BaseModel::random(architecture, 7, Precision::Fp32, &Device::Cpu).unwrap();
        let base = Arc::new(base);
        let trainer = |rank| {
            let mut recipe = Recipe::new("random", DataSettings::default());
            recipe.precision = Precision::Fp32;
            recipe.optimizer.kind = OptimizerKind::AdamW;
            recipe.adapter = Some(AdapterSettings {
                rank,
                ..AdapterSettings::default()
            });
            Trainer::new(Arc::clone(&base), &recipe, 9).unwrap()
        };
        let mut grouped = [2, 3].map(trainer);
        let mut passes = Together::new(&grouped.iter().collect::<Vec<_>>()).unwrap();
        let mut alone = [2, 3].map(trainer);
        // At the first step the other factors are zero.
        for step in 0..3 {
            let batches = [0, 1].map(|index| vec![batch(10 * step + index)]);
            let of_all: Vec<&[MicroBatch]> = batches.iter().map(Vec::as_slice).collect();
            let mut stepping: Vec<&mut Trainer> = grouped.iter_mut().collect();
            for event in passes.step(&mut stepping, &of_all).unwrap() {
                event.unwrap();
            }
            for (trainer, batches) in alone.iter_mut().zip(&of_all) {
                trainer.step(batches).unwrap();
            }
            for (grouped, alone) in grouped.iter().zip(&alone) {
                assert_eq!(gradients(grouped), gradients(alone), "step {step}");
            }
        }
    }
}
