//! Sources of the base model that trainers take.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Device;

use crate::{BaseModel, TrainError};
use peft_tune_core::recipe::Precision;

/// The base model of one or more trainers in a row.
#[derive(Clone, Debug)]
pub enum BaseSource {
    /// Base model that is loaded and shared.
    Kept(Arc<BaseModel>),
    /// Base model that is loaded again for each trainer. Where every parameter trains, the trainer has its own values
    /// of all of them, and a copy that stays would be weights that no step needs.
    Fresh {
        folder: PathBuf,
        precision: Precision,
        device: Device,
    },
}

impl BaseSource {
    /// The model, for one trainer.
    ///
    /// # Errors
    /// Errors of [`BaseModel::load`].
    pub fn open(&self) -> Result<Arc<BaseModel>, TrainError> {
        match self {
            Self::Kept(base) => Ok(Arc::clone(base)),
            Self::Fresh {
                folder,
                precision,
                device,
            } => BaseModel::load(folder, *precision, device).map(Arc::new),
        }
    }

    /// Device where the model is, or is going to be.
    pub fn device(&self) -> &Device {
        match self {
            Self::Kept(base) => base.device(),
            Self::Fresh { device, .. } => device,
        }
    }

    /// Bytes of the weights that stay frozen.
    pub fn frozen_bytes(&self) -> usize {
        match self {
            Self::Kept(base) => base.bytes(),
            Self::Fresh { .. } => 0,
        }
    }
}
