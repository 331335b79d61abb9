//! Bayesian optimisation of several objectives: Gaussian processes predict every metric, and the next setting is the one
//! with the highest expected hypervolume improvement times its probability of keeping the constraints and not failing.

mod aim;
mod candidates;
mod climb;
mod confounding;
mod contrast;
mod dependence;
mod earlier;
mod effect;
mod ehvi;
mod fair_comparison;
mod initial;
mod insight;
mod landscape;
mod loss_front;
mod make;
mod marginal;
mod maximise;
mod model;
mod neighbourhood;
mod observations;
mod output;
mod proposal;
mod propose;
mod sampler;
mod score;
mod step;
mod surrogates;
mod trainings;

pub(crate) use make::{MOST_OBJECTIVES, OPTIONS, make};

pub use effect::{Dependence, Effect, EffectPoint, Trend};
pub use insight::{Importance, Insight, Share, importance};
pub use proposal::Proposal;
pub use sampler::Bayes;
