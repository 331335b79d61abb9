//! Search space files: what may be sampled, and the study around it.

mod binding;
mod check;
mod error;
pub mod file;
mod schema;
mod study;
mod yaml;

pub use binding::{
    Binding, Effect, Effects, FloatRange, Legal, RecipeError, SetError, affected_metrics, binding, bindings, params_of,
    recipe_for,
};
pub use check::{ReadOptions, RecipeFile, RecipeFileError};
pub use error::SpaceError;
pub use file::{Bytes, Count, QuantityError, Seconds, StudyFile};
pub use schema::{recipe_schema, study_schema};
pub use study::{Backend, Budget, CommandBackend, Source, Study, WarmStart};
pub use yaml::Span;
