//! Writing a study as a storage that Optuna loads and optuna-dashboard shows: whole, or kept up to date.

mod distribution;
mod keep;
mod write;

pub use keep::{OptunaFile, OptunaStudy};
pub use write::{RecommendedTrial, write_optuna};
