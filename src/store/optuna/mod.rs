//! Writing a study as a storage that Optuna loads and optuna-dashboard shows: whole, or kept up to date.

mod distribution;
mod optuna_file;
mod write;

pub use optuna_file::{OptunaFile, OptunaStudy};
pub use write::{RecommendedTrial, write_optuna};
