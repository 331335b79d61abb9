//! Logits that a trainer gives of a micro-batch.

use candle_core::Tensor;

use super::trainer::Trainer;
use crate::TrainError;
use crate::data::MicroBatch;
use crate::model::Stream;

/// Positions whose logits exist at a time where only the most likely token is asked for.
const ROWS_OF_LOGITS: usize = 64;

impl Trainer {
    /// Logits (tokens, V) F32 of one micro-batch, without dropout.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn logits(&mut self, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, None, None, self.base.device())?;
        let (normed, _) = self.forward(&stream)?;
        Ok(self.own.decoder.logits(&normed)?)
    }

    /// The most likely next token at every position of one micro-batch, without dropout. The logits exist for a few
    /// positions at a time.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn most_likely(&mut self, batch: &MicroBatch) -> Result<Vec<u32>, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, None, None, self.base.device())?;
        let (normed, _) = self.forward(&stream)?;
        let mut tokens = Vec::with_capacity(batch.tokens());
        for first in (0..batch.tokens()).step_by(ROWS_OF_LOGITS) {
            let rows = normed.narrow(0, first, ROWS_OF_LOGITS.min(batch.tokens() - first))?;
            let logits = self.own.decoder.logits(&rows.contiguous()?)?;
            tokens.extend(logits.argmax(candle_core::D::Minus1)?.to_vec1::<u32>()?);
        }
        Ok(tokens)
    }
}
