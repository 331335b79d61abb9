//! Readers of tokens that tell what follows: a generator's model, or the one that a trainer trains.

use candle_core::{DType, Tensor};

use super::decoding::{Decoding, going_on};
use crate::base::BaseModel;
use crate::model::{Decoder, KeyValueCache, RopeTables, RowOwners, Stream};
use crate::training::Trainer;
use crate::{BatchError, PromptError, TrainError};
use peft_tune_core::architecture::Architecture;

/// A model that reads.
pub(super) struct Reader<'a> {
    pub(super) base: &'a BaseModel,
    pub(super) decoder: &'a Decoder,
    pub(super) ropes: &'a mut RopeTables,
}

impl<'a> Reader<'a> {
    /// The model of a training as it is now, without dropout.
    pub(super) fn of_trainer(trainer: &'a mut Trainer) -> Self {
        let (base, decoder, ropes) = trainer.reading();
        Self { base, decoder, ropes }
    }

    /// Begins as [`Generator::begin`](crate::Generator::begin) does, with the adapter of each sequence where there are
    /// several.
    pub(super) fn begin(
        &mut self,
        prompts: &[&[u32]],
        owners: Option<Vec<u32>>,
        room: usize,
    ) -> Result<(Decoding, Tensor), TrainError> {
        if prompts.is_empty() {
            return Err(PromptError::Empty.into());
        }
        let mut longest = 0;
        for prompt in prompts {
            check(self.base.architecture(), prompt)?;
            longest = longest.max(prompt.len());
        }
        let cache = KeyValueCache::new(
            self.base.architecture(),
            prompts.len(),
            room.max(longest),
            self.base.compute_dtype(),
            self.base.device(),
        )?;
        let mut decoding = Decoding::new(cache, longest, owners);
        let logits = self.read(&mut decoding, prompts)?;
        Ok((decoding, logits))
    }

    /// Advances as [`Generator::advance`](crate::Generator::advance) does.
    pub(super) fn advance(&mut self, decoding: &mut Decoding, tokens: &[u32]) -> Result<Tensor, TrainError> {
        let tokens: Vec<&[u32]> = tokens.chunks(1).collect();
        self.read(decoding, &tokens)
    }

    /// Reads the tokens that continue with each sequence.
    fn read(&mut self, decoding: &mut Decoding, tokens: &[&[u32]]) -> Result<Tensor, TrainError> {
        let batch = going_on(decoding.lengths(), tokens);
        let longest = batch.positions.iter().max().map_or(0, |last| *last as usize + 1);
        decoding.longest = decoding.longest.max(longest);
        let last: Vec<u32> = batch.offsets[1..].iter().map(|end| end - 1).collect();
        self.ropes.prepare(decoding.longest)?;
        let device = self.base.device();
        let owners = match &decoding.owners {
            Some(owners) => {
                let documents = tokens.iter().zip(owners);
                let documents = documents.map(|(tokens, owner)| (tokens.len(), *owner));
                Some(RowOwners::of_documents(documents, device)?)
            }
            None => None,
        };
        let stream = Stream::new(&batch, None, None, device)?.owned_by(owners);
        let normed = self.decoder.infer(&stream, self.ropes, &mut decoding.cache)?;
        let last = Tensor::from_slice(&last, last.len(), device)?;
        let logits = self.decoder.logits(&normed.index_rows(&last)?)?;
        Ok(logits.to_dtype(DType::F32)?)
    }
}

/// Refuses what a model cannot read: nothing, tokens that it does not have, or more than it has positions.
pub(super) fn check(architecture: &Architecture, tokens: &[u32]) -> Result<(), TrainError> {
    let vocabulary = architecture.vocabulary;
    if tokens.is_empty() {
        return Err(PromptError::Empty.into());
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
        let token = i64::from(*token);
        return Err(BatchError::UnknownToken { token, vocabulary }.into());
    }
    if tokens.len() > architecture.max_positions {
        return Err(PromptError::TooLong {
            tokens: tokens.len(),
            max_positions: architecture.max_positions,
        }
        .into());
    }
    Ok(())
}
