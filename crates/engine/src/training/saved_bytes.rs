//! Bytes that a trainer's forward pass keeps.

use super::trainer::Trainer;
use crate::TrainError;
use crate::data::MicroBatch;
use crate::model::{Keep, Stream};

/// Bytes that a micro-batch's forward pass keeps for its backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedBytes {
    pub device: usize,
    /// Bytes in host memory, for a device that is not the host.
    pub host: usize,
}

impl Trainer {
    /// Runs one micro-batch forward and counts what it keeps for the backward pass.
    ///
    /// # Errors
    /// Errors of [`Trainer::step`]; targets are not needed.
    pub fn saved_bytes(&mut self, batch: &MicroBatch) -> Result<SavedBytes, TrainError> {
        self.check_tokens(batch)?;
        self.ropes.prepare(batch.longest())?;
        let stream = Stream::new(batch, self.dropout(0), None, self.base.device())?;
        let keep = Keep::ForBackward(self.recipe.gradient_checkpointing);
        let (_, tape) = self.own.decoder.forward(&stream, &self.ropes, keep)?;
        let (device, host) = tape.bytes();
        Ok(SavedBytes { device, host })
    }
}
