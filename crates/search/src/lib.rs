//! Proposing params: pure arithmetic over a history of trials. Nothing here runs, stores or prints anything.

mod bayes;
mod boxes;
mod build;
mod candidate_score;
mod encode;
mod enumerate;
#[cfg(test)]
pub(crate) mod fixtures;
mod gp;
mod grid;
mod history;
mod hypervolume;
mod learning;
pub mod learning_curve;
mod normal;
mod nsga2;
pub mod pareto;
mod prior;
mod pruner;
mod random;
mod reason;
mod recommend;
mod sampler;
mod seeded;
mod sobol;
mod stopping;
mod tpe;

pub use bayes::{
    Bayes, Dependence, Effect, EffectPoint, Importance, Insight, Predicted, Proposal, Share, Trend, importance,
};
pub use build::{Knowledge, SamplerError, build, build_with};
pub use candidate_score::CandidateScore;
pub use enumerate::Settings;
pub use grid::Grid;
pub use history::{Evaluated, evaluated, most_telling, pareto_front, reference_point};
pub use hypervolume::hypervolume;
pub use nsga2::Nsga2;
pub use prior::Prior;
pub use pruner::{Asha, Dominance, Field, Median, Progress, Pruner, Verdict, build_pruner};
pub use random::Random;
pub use recommend::{Preference, RecommendError, Recommendation, Rule, recommend};
pub use sampler::{Problem, Sampler};
pub use sobol::Sobol;
pub use stopping::{hypervolume_history, stop_reason};
pub use tpe::Tpe;
