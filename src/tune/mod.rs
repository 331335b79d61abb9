//! The study loop: ask, decide, run, tell, record.

mod again;
mod baseline;
mod claim;
mod confirm;
mod cost_survey;
mod decide;
mod ending;
mod error;
mod events;
mod expect;
mod forecast;
mod inputs;
mod interrupt;
mod judge;
mod kept_metrics;
mod known;
mod observer;
mod outlier;
mod propose;
mod record;
mod reported;
mod requests;
mod retry_policy;
mod running;
mod tuner;

pub use baseline::{baseline, usual_learning_rate};
pub use confirm::Repeat;
pub use cost_survey::{CostSurvey, Expected};
pub use ending::Ending;
pub use error::TuneError;
pub use forecast::{Forecast, LimitSource, MemoryLimit, Unpredictable};
pub use inputs::Inputs;
pub use interrupt::Interrupt;
pub use observer::{Progress, TuneObserver};
pub use tuner::{Tuner, TunerParts};
