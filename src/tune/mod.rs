//! The study loop: ask, decide, run, tell, record.

mod error;
mod forecast;
mod interrupt;
mod known;
mod observer;
mod outlook;
mod tuner;

pub use error::TuneError;
pub use forecast::{Forecast, Unpredictable};
pub use interrupt::Interrupt;
pub use observer::{Progress, TuneObserver};
pub use outlook::{Expected, Outlook};
pub use tuner::{Ending, Tuner, TunerParts};
