//! Event files that TensorBoard draws: scalars over the steps of a training.
//!
//! An event file is a sequence of records (`record`), each with one protobuf message (`event`).

mod crc32c;
mod event;
mod log;
mod profile;
mod record;

pub use log::TensorBoard;
