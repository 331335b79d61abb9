//! Proposing params: pure arithmetic over a history of trials. Nothing here runs, stores or prints anything.

mod sampler;

pub use sampler::{Problem, Sampler};
