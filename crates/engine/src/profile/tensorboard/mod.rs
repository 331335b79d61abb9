//! Event files that TensorBoard draws: scalars over the steps of a training, and the table of its HParams tab. Files that
//! other programs write are read as they grow (`reader`).
//!
//! An event file is a sequence of records (`record`), each with one protobuf message (`event`).

mod crc32c;
mod event;
mod hparams;
mod log;
mod profile;
mod reader;
mod record;
mod trial_log;

pub use hparams::HparamValue;
pub use log::TensorBoard;
pub use reader::{BrokenRecord, EventReader, ScalarEvent};
pub use trial_log::{TrialLog, TrialStart};
