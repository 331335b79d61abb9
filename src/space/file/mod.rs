//! The study file as it is written: the typed structure that both the reader and the JSON schema come from.

mod entries;
mod env;
mod fidelity;
mod name_or_map;
mod parameter;
mod score;
mod serve;
mod study_file;
mod track;
mod warm_start;

pub use entries::Entries;
pub use fidelity::{ConfirmDetails, ConfirmEntry, PrunerDetails, PrunerEntry, StopDetails, StopEntry};
pub use parameter::{DetailedParameter, FileValue, Number, ParameterEntry};
pub use score::ScoreEntry;
pub use serve::ServeEntry;
pub use study_file::{
    BackendEntry, BackendKeys, BudgetEntry, EvaluationEntry, ObjectiveDetails, ObjectiveEntry, SamplerDetails,
    SamplerEntry, StudyFile, TrialEntry, TrlKeys,
};
pub use track::TrackEntry;
pub use warm_start::WarmStartEntry;

pub use peft_tune_core::quantity::{Bytes, Count, Dollars, HourlyPrice, QuantityError, Seconds};
