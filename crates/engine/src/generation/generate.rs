//! Text from a model: the base model as it is, or with an adapter.
//!
//! Each token is drawn from softmax(logits / T) of the last position, or is the most likely one at T = 0.
//!
//! The keys and values of the tokens read are kept ([`super::decoding`]), so that each new token costs itself;
//! [`Generator::next_logits`] runs the whole sequence again, which is the form that cannot be wrong.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::decoding::Decoding;
use super::reader::{self, Reader};
use crate::base::BaseModel;
use crate::data::MicroBatch;
use crate::model::{Decoder, Keep, RopeTables, Stream};
use crate::training::TrainedSet;
use crate::{Control, MergedModel, PromptError, TrainError};
use peft_tune_core::recipe::Recipe;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// A model that reads tokens and predicts the next.
pub struct Generator {
    base: Arc<BaseModel>,
    trained: TrainedSet,
    decoder: Decoder,
    ropes: RopeTables,
    /// How many lie side by side; 0 for none, or for one that all sequences share.
    adapters: usize,
}

/// How tokens are chosen, and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationSettings {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// 0 takes the most likely token; larger values draw more freely.
    pub temperature: f64,
    /// Decides what is drawn.
    pub seed: u64,
    /// Tokens that end the text; the one that did is not part of it.
    pub stop_ids: Vec<u32>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnd {
    /// Stop token of the model.
    StopToken,
    /// Length of as many tokens as were asked for.
    MaxTokens,
    /// End of the model's positions.
    MaxPositions,
    /// Decision of whoever reads the text.
    Stopped,
}

/// Text that was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    pub tokens: Vec<u32>,
    pub end: TextEnd,
}

impl Generator {
    /// `base` with the PEFT adapter in `adapter`, or as it is.
    ///
    /// # Errors
    /// An adapter that cannot be read or belongs to another model; memory.
    pub fn new(base: impl Into<Arc<BaseModel>>, adapter: Option<&Path>) -> Result<Self, TrainError> {
        let base = base.into();
        let trained = match adapter {
            Some(directory) => TrainedSet::saved_adapter(&base, directory)?,
            None => TrainedSet::nothing(&base)?,
        };
        Self::of(base, trained)
    }

    /// `base` with the fresh adapter that `recipe` asks for: it changes nothing of what the model says, and costs what a
    /// trained one costs.
    ///
    /// # Errors
    /// Adapter settings that do not fit the model; memory.
    pub fn with_fresh_adapter(base: impl Into<Arc<BaseModel>>, recipe: &Recipe) -> Result<Self, TrainError> {
        let base = base.into();
        let trained = TrainedSet::new(&base, recipe)?;
        Self::of(base, trained)
    }

    /// `base` with several PEFT adapters, of which each sequence is answered with one ([`Generator::begin_each`]).
    ///
    /// # Errors
    /// Errors of [`Generator::new`]; an adapter that has more than lora_a and lora_b of linear layers.
    pub fn side_by_side(base: impl Into<Arc<BaseModel>>, adapters: &[&Path]) -> Result<Self, TrainError> {
        let base = base.into();
        let adapters = adapters.iter().map(|adapter| TrainedSet::saved_adapter(&base, adapter));
        Self::of_many(base.clone(), &adapters.collect::<Result<Vec<_>, _>>()?)
    }

    /// Makes a generator with `count` fresh adapters side by side, as `recipe` asks for them.
    ///
    /// # Errors
    /// Errors of [`Generator::with_fresh_adapter`] and [`Generator::side_by_side`].
    pub fn with_fresh_adapters(
        base: impl Into<Arc<BaseModel>>,
        recipe: &Recipe,
        count: usize,
    ) -> Result<Self, TrainError> {
        let base = base.into();
        let adapters = (0..count).map(|_| TrainedSet::new(&base, recipe));
        Self::of_many(base.clone(), &adapters.collect::<Result<Vec<_>, _>>()?)
    }

    fn of_many(base: Arc<BaseModel>, adapters: &[TrainedSet]) -> Result<Self, TrainError> {
        let trained = TrainedSet::side_by_side(&base, adapters)?;
        Ok(Self {
            adapters: adapters.len(),
            ..Self::of(base, trained)?
        })
    }

    /// Folds the adapter into the weights, which then are the whole model.
    ///
    /// # Errors
    /// Errors of [`Generator::merged`]; memory.
    pub fn into_merged(self) -> Result<Self, TrainError> {
        let merged = self.merged()?;
        let architecture = merged.architecture().clone();
        let tensors = architecture.tensors().into_iter();
        let tensors = tensors
            .map(|tensor| Ok((tensor.name.clone(), merged.tensor(&tensor.name)?)))
            .collect::<Result<_, TrainError>>()?;
        let (precision, device) = (self.base.precision(), self.base.device());
        let base = BaseModel::from_tensors(architecture, tensors, precision, device)?;
        Self::new(base, None)
    }

    fn of(base: Arc<BaseModel>, trained: TrainedSet) -> Result<Self, TrainError> {
        Ok(Self {
            adapters: 0,
            decoder: Decoder::new(&base, &trained.trainables())?,
            ropes: RopeTables::new(&base.architecture().ropes, base.device()),
            trained,
            base,
        })
    }

    /// The base model.
    pub fn base(&self) -> &BaseModel {
        &self.base
    }

    /// Rank of the adapter's first layer; absent without an adapter.
    pub fn adapter_rank(&self) -> Option<usize> {
        let plan = self.trained.plan.adapter.as_ref()?;
        plan.linears.first().map(|linear| linear.rank)
    }

    /// Adapters side by side; 0 for none, or for one that all sequences share.
    pub fn adapters(&self) -> usize {
        self.adapters
    }

    /// The model with its adapter folded in.
    ///
    /// # Errors
    /// [`PromptError::SeveralAdapters`], where each sequence has one of several;
    /// A trained bias of lora_b on a layer that has no bias to hold it.
    pub fn merged(&self) -> Result<MergedModel<'_>, TrainError> {
        self.check_shared()?;
        MergedModel::new(&self.base, &self.trained)
    }

    /// Logits (V) of the token that follows `tokens`.
    ///
    /// # Errors
    /// No tokens, one outside the vocabulary, or more than the model has positions.
    pub fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        self.check_shared()?;
        self.check(tokens)?;
        let mut batch = MicroBatch::new();
        batch.push(tokens, std::iter::repeat_n(IGNORE, tokens.len()));
        self.ropes.prepare(tokens.len())?;
        let stream = Stream::new(&batch, None, None, self.base.device())?;
        let (normed, _) = self.decoder.forward(&stream, &self.ropes, Keep::Nothing)?;
        let last = normed.narrow(0, tokens.len() - 1, 1)?;
        Ok(self.decoder.logits(&last)?.flatten_all()?.to_vec1()?)
    }

    /// Reads `prompts` and returns the logits (sequences, V), F32, of the token that follows each. `room` is how many
    /// tokens a sequence may have in all.
    ///
    /// # Errors
    /// No prompts, an empty one, a token outside the vocabulary, or more than the model has positions; memory.
    pub fn begin(&mut self, prompts: &[&[u32]], room: usize) -> Result<(Decoding, Tensor), TrainError> {
        self.check_shared()?;
        self.reader().begin(prompts, None, room)
    }

    /// Begins as [`Generator::begin`] does for a model with several adapters, of which sequence i is answered with
    /// number `owners[i]`, from 0.
    ///
    /// # Errors
    /// Errors of [`Generator::begin`]; [`PromptError::NoSuchAdapter`] where there is none of that number, or not one for each prompt.
    pub fn begin_each(
        &mut self,
        prompts: &[&[u32]],
        owners: &[usize],
        room: usize,
    ) -> Result<(Decoding, Tensor), TrainError> {
        let adapters = self.adapters();
        let stray = owners.iter().find(|owner| **owner >= adapters).copied();
        if stray.is_some() || owners.len() != prompts.len() {
            return Err(PromptError::NoSuchAdapter {
                number: stray.unwrap_or(owners.len()),
                adapters,
            }
            .into());
        }
        let owners = owners.iter().map(|owner| *owner as u32).collect();
        self.reader().begin(prompts, Some(owners), room)
    }

    /// Reads one more token of each sequence and returns the logits (sequences, V), F32, of the token that follows.
    ///
    /// # Errors
    /// Errors of [`Generator::begin`]; a sequence without room.
    pub fn advance(&mut self, decoding: &mut Decoding, tokens: &[u32]) -> Result<Tensor, TrainError> {
        self.reader().advance(decoding, tokens)
    }

    /// Continues `prompt`. `on_token` is told each token as it comes and may stop the text.
    ///
    /// # Errors
    /// Errors of [`Generator::next_logits`].
    pub fn generate(
        &mut self,
        prompt: &[u32],
        settings: &GenerationSettings,
        on_token: &mut dyn FnMut(u32) -> Control,
    ) -> Result<Generated, TrainError> {
        self.check(prompt)?;
        let mut sequence = prompt.to_vec();
        let mut random = Pcg64::seed_from_u64(settings.seed);
        let positions = self.base.architecture().max_positions;
        let room = positions.min(prompt.len().saturating_add(settings.max_tokens));
        let mut decoding: Option<Decoding> = None;
        let end = loop {
            if sequence.len() - prompt.len() >= settings.max_tokens {
                break TextEnd::MaxTokens;
            }
            if sequence.len() > positions {
                break TextEnd::MaxPositions;
            }
            let logits = self.following(&sequence, room, &mut decoding)?;
            let token = choose(&logits, settings.temperature, &mut random) as u32;
            if settings.stop_ids.contains(&token) {
                break TextEnd::StopToken;
            }
            sequence.push(token);
            if on_token(token) == Control::Stop {
                break TextEnd::Stopped;
            }
        };
        Ok(Generated {
            tokens: sequence.split_off(prompt.len()),
            end,
        })
    }

    /// Logits (V) of the token that follows `sequence`, all of whose tokens but the last have been read.
    fn following(
        &mut self,
        sequence: &[u32],
        room: usize,
        decoding: &mut Option<Decoding>,
    ) -> Result<Vec<f32>, TrainError> {
        // Where a longer text turns by other frequencies, what is kept of the shorter one is of no use.
        let going_on = decoding
            .as_mut()
            .filter(|kept| !self.ropes.turns_otherwise(kept.longest(), sequence.len()));
        let logits: Tensor = match (going_on, sequence) {
            (Some(kept), [.., last]) => self.advance(kept, &[*last])?,
            _ => {
                let (begun, logits) = self.begin(&[sequence], room)?;
                *decoding = Some(begun);
                logits
            }
        };
        Ok(logits.flatten_all()?.to_vec1()?)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), TrainError> {
        reader::check(self.base.architecture(), tokens)
    }

    /// Refuses what takes one model for all sequences where each has one of several adapters.
    pub(super) fn check_shared(&self) -> Result<(), TrainError> {
        match self.adapters {
            0 => Ok(()),
            adapters => Err(PromptError::SeveralAdapters { adapters }.into()),
        }
    }

    /// Reader of tokens with this model.
    pub(super) fn reader(&mut self) -> Reader<'_> {
        Reader {
            base: &self.base,
            decoder: &self.decoder,
            ropes: &mut self.ropes,
        }
    }
}

/// The index of the chosen logit: the greatest at temperature 0, else drawn from softmax(logits / temperature).
fn choose(logits: &[f32], temperature: f64, random: &mut impl RngExt) -> usize {
    let likelier = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    let greatest = (1..logits.len()).fold(0, likelier);
    if temperature <= 0.0 {
        return greatest;
    }
    let top = f64::from(logits[greatest]);
    let weight = |logit: &f32| ((f64::from(*logit) - top) / temperature).exp();
    let total: f64 = logits.iter().map(weight).sum();
    let mut left = random.random::<f64>() * total;
    for (index, logit) in logits.iter().enumerate() {
        left -= weight(logit);
        if left < 0.0 {
            return index;
        }
    }
    greatest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_temperature_the_first_greatest_is_chosen() {
        let mut random = Pcg64::seed_from_u64(0);
        assert_eq!(choose(&[0.5, 2.0, -1.0, 2.0], 0.0, &mut random), 1);
    }

    #[test]
    fn tokens_are_drawn_as_often_as_the_softmax_says() {
        let logits = [0.0, 1.0, -1.0, f32::NEG_INFINITY];
        let (temperature, draws) = (0.7, 20_000);
        let weights = logits.map(|logit: f32| (f64::from(logit) / temperature).exp());
        let total: f64 = weights.iter().sum();
        let mut counts = [0_u32; 4];
        let mut random = Pcg64::seed_from_u64(3);
        (0..draws).for_each(|_| counts[choose(&logits, temperature, &mut random)] += 1);
        for (count, weight) in counts.iter().zip(weights) {
            let expected = weight / total;
            let deviation = (expected * (1.0 - expected) / f64::from(draws)).sqrt();
            let got = f64::from(*count) / f64::from(draws);
            assert!((got - expected).abs() <= 5.0 * deviation, "{counts:?}");
        }
    }
}
