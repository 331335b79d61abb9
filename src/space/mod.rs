//! Search space files: what may be sampled, and the study around it.

mod check;
mod destination;
mod error;
pub mod file;
mod loader;
mod problem;
mod recipe_for;
mod recipe_metrics;
mod schema;
mod study;
mod study_values;
mod target;
mod yaml;

pub use check::{ReadOptions, RecipeFile, RecipeFileError};
pub use destination::{Destination, DestinationError, TrackerKind};
pub use error::SpaceError;
pub use file::{Bytes, Count, Dollars, HourlyPrice, QuantityError, Seconds, StudyFile};
pub use loader::Loader;
pub use problem::problem_of;
pub use recipe_for::{RecipeError, params_of, recipe_for};
pub use schema::{recipe_schema, study_schema};
pub use study::{Backend, BackendKind, Budget, CommandBackend, Source, Study, TrlBackend, WarmStart};
pub use target::Target;
pub use yaml::Span;
