//! Commands on a model or an adapter alone.

pub(super) mod adopt;
pub(super) mod generate;
pub(super) mod infer_bench;
pub(super) mod merge;
mod trained_recipe;
