//! Bayesian optimisation of several objectives: Gaussian processes predict every metric, and the next setting is the one
//! with the highest expected hypervolume improvement times its probability of keeping the constraints and not failing.

mod candidates;
mod climb;
mod ehvi;
mod landscape;
mod marginal;
mod maximise;
mod observations;
mod output;
mod outlook;
mod proposal;

pub use proposal::{Bayes, Predicted, Proposal};
