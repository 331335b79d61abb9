//! The sampler `bayes` as a study file's options ask for it.

use super::Bayes;
use crate::samplers::Request;
use crate::{Sampler, SamplerError};
use peft_tune_core::study::ParamValue;

/// Most objectives that the sampler takes: its improvement is computed exactly, in a time that grows steeply.
pub(crate) const MOST_OBJECTIVES: usize = 4;
/// Options: trials of the initial design, and the metric by which proposals are weighed as their cost.
const INITIAL: &str = "initial";
const PER_COST: &str = "per_cost";
pub(crate) const OPTIONS: &[&str] = &[INITIAL, PER_COST];

/// The sampler that a study asks for, which starts from what is known.
pub(crate) fn make(request: Request<'_>) -> Result<Box<dyn Sampler>, SamplerError> {
    let objectives = request.problem.objectives.len();
    if objectives > MOST_OBJECTIVES {
        return Err(SamplerError::ManyObjectives { objectives });
    }
    let refused = |option: &'static str, value: &ParamValue, wanted: &'static str| SamplerError::Option {
        option,
        value: value.to_string(),
        wanted,
    };
    let mut sampler = Bayes::new(request.seed).with_earlier(request.knowledge.earlier);
    match request.options.get(INITIAL) {
        None => {}
        Some(ParamValue::Int(trials)) if (2..=10_000).contains(trials) => {
            sampler = sampler.with_initial(*trials as usize);
        }
        Some(other) => return Err(refused(INITIAL, other, "a whole number from 2 to 10000")),
    }
    match request.options.get(PER_COST) {
        None => {}
        Some(ParamValue::Text(metric)) if !metric.is_empty() => sampler = sampler.per_cost(metric.as_str()),
        Some(other) => return Err(refused(PER_COST, other, "the name of a metric that trials report")),
    }
    Ok(Box::new(match request.knowledge.prior {
        Some(prior) => sampler.with_prior(prior),
        None => sampler,
    }))
}
