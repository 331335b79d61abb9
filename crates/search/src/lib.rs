//! Proposing params: pure arithmetic over a history of trials. Nothing here runs, stores or prints anything.

mod boxes;
mod build;
mod candidate_score;
mod cheaper_precision;
mod encode;
mod enumerate;
#[cfg(test)]
pub(crate) mod fixtures;
mod found_length;
mod gp;
mod history;
mod hypervolume;
mod knee;
mod knowledge;
mod learning;
pub mod learning_curve;
mod length;
mod long_training;
mod loss_margins;
mod measured_prior;
mod normal;
mod paired;
pub mod pareto;
mod predicted;
mod prior;
mod pruner;
mod reason;
mod recommend;
mod reference_point;
mod sampler;
mod sampler_error;
mod samplers;
mod seeded;
mod sobol;
mod stopping;
mod untold_costs;
mod variants;
mod widen;

pub use build::{build, build_with};
pub use candidate_score::CandidateScore;
pub use enumerate::Settings;
pub use found_length::{EvaluatedLoss, FoundLength, LossRise};
pub use history::{Evaluated, evaluated, pareto_front};
pub use hypervolume::hypervolume;
pub use knee::beyond_knee;
pub use knowledge::Knowledge;
pub use length::{FullLength, PayingLength, RateRange, Trained};
pub use long_training::{at_full_length, diverged_loss};
pub use loss_margins::{LOSS_BY_CHANCE, NEAR_BEST_LOSS};
pub use paired::{PairedDifference, PairedRow, WRONG_STOP, looks};
pub use predicted::Predicted;
pub use prior::Prior;
pub use pruner::{Asha, Dominance, Field, Median, Progress, Pruner, Verdict, build_pruner};
pub use recommend::{Preference, RecommendError, Recommendation, Rule, recommend};
pub use reference_point::{most_telling, reference_point};
pub use sampler::{Problem, Sampler};
pub use sampler_error::SamplerError;
pub use samplers::{
    Bayes, Dependence, Effect, EffectPoint, Grid, Importance, Insight, Nsga2, Proposal, Random, SamplerChoice,
    SamplerKind, Share, Sobol, Tpe, Trend, importance,
};
pub use stopping::{hypervolume_history, stop_reason};
pub use untold_costs::{UntoldCost, UntoldOutcome, costs_changed_by, next_untold, untold_costs};
pub use variants::{next_variant, varied};
pub use widen::next_widening;
