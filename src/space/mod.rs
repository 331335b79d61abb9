//! Search space files: what may be sampled, and the study around it.

mod check;
mod distribution;
mod error;
mod fidelity;
pub mod file;
mod membership;
mod recipe_for;
mod schema;
mod search_space;
mod study;
mod yaml;

pub use check::{ReadOptions, RecipeFile, RecipeFileError};
pub use distribution::{Distribution, Scale};
pub use error::SpaceError;
pub use fidelity::{ConfirmPlan, PrunerChoice, PrunerKind, RepeatsInAll, StopRule};
pub use file::{Bytes, Count, QuantityError, Seconds, StudyFile};
pub use membership::SettingError;
pub use recipe_for::{RecipeError, params_of, recipe_for};
pub use schema::{recipe_schema, study_schema};
pub use search_space::{Condition, Parameter, SearchSpace};
pub use study::{Backend, Budget, CommandBackend, SamplerChoice, SamplerKind, Source, Study, WarmStart};
pub use yaml::Place;
