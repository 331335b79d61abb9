//! A recipe that cannot be profiled.

use crate::TrainError;
use crate::data::DataError;

/// A recipe that cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot start the thread that watches the device: {0}")]
    Thread(std::io::Error),
    #[error("the data ended after {steps} steps; give the recipe more training rows")]
    NoData { steps: u64 },
}

impl From<candle_core::Error> for ProfileError {
    fn from(error: candle_core::Error) -> Self {
        Self::Train(error.into())
    }
}
