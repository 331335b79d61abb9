//! The study loop: ask, decide, run, tell, record.

mod error;
mod interrupt;
mod known;
mod observer;
mod requests;
mod tuner;

pub use error::TuneError;
pub use interrupt::Interrupt;
pub use observer::{Progress, TuneObserver};
pub use tuner::{Ending, Tuner, TunerParts};
