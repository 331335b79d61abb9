//! Logits that a trainer gives of a micro-batch.

use std::ops::Range;

use candle_core::Tensor;

use super::trainer::Trainer;
use crate::TrainError;
use crate::data::MicroBatch;
use crate::model::Stream;
use crate::tensor;

/// Positions whose logits exist at a time where not all of them are asked for at once.
const ROWS_OF_LOGITS: usize = 64;

impl Trainer {
    /// Logits (tokens, V) F32 of one micro-batch, without dropout.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn logits(&mut self, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let normed = self.normed(batch)?;
        Ok(self.own.decoder.logits(&normed)?)
    }

    /// The most likely next token at every position of one micro-batch, without dropout. The logits exist for a few
    /// positions at a time.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn most_likely(&mut self, batch: &MicroBatch) -> Result<Vec<u32>, TrainError> {
        let normed = self.normed(batch)?;
        let mut tokens = Vec::with_capacity(batch.tokens());
        for rows in rows_of_logits(batch.tokens()) {
            let logits = self.logits_at(&normed, rows)?;
            tokens.extend(logits.argmax(candle_core::D::Minus1)?.to_vec1::<u32>()?);
        }
        Ok(tokens)
    }

    /// What the head reads of one micro-batch, (tokens, H), without dropout.
    pub(super) fn normed(&mut self, batch: &MicroBatch) -> Result<tensor::Tensor, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, None, None, self.base.device())?;
        let (normed, _) = self.forward(&stream)?;
        Ok(normed)
    }

    /// Logits (rows, V) F32 of some positions of what [`Trainer::normed`] gave.
    pub(super) fn logits_at(&self, normed: &tensor::Tensor, rows: Range<usize>) -> Result<Tensor, TrainError> {
        let rows = normed.narrow(0, rows.start, rows.len())?;
        Ok(self.own.decoder.logits(&rows.contiguous()?)?)
    }
}

/// The positions of a micro-batch of so many tokens, as many at a time as have logits at once.
pub(super) fn rows_of_logits(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..tokens).step_by(ROWS_OF_LOGITS);
    starts.map(move |first| first..tokens.min(first + ROWS_OF_LOGITS))
}
