//! Proposing params: pure arithmetic over a history of trials. Nothing here runs, stores or prints anything.

mod enumerate;
#[cfg(test)]
pub(crate) mod fixtures;
mod grid;
mod history;
mod hypervolume;
mod kind;
mod normal;
mod nsga2;
pub mod pareto;
mod random;
mod recommend;
mod sampler;
mod seeded;
mod sobol;
mod tpe;

pub use enumerate::Settings;
pub use grid::Grid;
pub use history::{Evaluated, evaluated, pareto_front, reference_point};
pub use hypervolume::hypervolume;
pub use kind::{SamplerError, SamplerKind};
pub use nsga2::Nsga2;
pub use random::Random;
pub use recommend::{RecommendError, Recommendation, Rule, Wish, recommend};
pub use sampler::{Problem, Sampler};
pub use sobol::Sobol;
pub use tpe::Tpe;
