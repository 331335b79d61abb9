//! Writing a study as a storage that Optuna loads and optuna-dashboard shows.

mod distribution;
mod write;
