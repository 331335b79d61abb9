//! The key `serve`: how the models of settings are served, and what changes how fast that is.

use super::Context;
use crate::space::SpaceError;
use crate::space::file::{ServeEntry, StudyFile};
use peft_tune_core::objective::{Constraint, LOSS, Objective, PEAK_MEMORY, SERVE_MS_PER_TOKEN, THROUGHPUT};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{ServeMode, ServePlan, TrialPlan};

/// Tokens that are generated where the file does not say how many.
const NEW_TOKENS: usize = 16;
/// Most adapters on one base model.
const MOST_ADAPTERS: usize = 1024;
/// Settings that a served model has, those of a merged one first; the others change a training alone.
const SERVED: [&str; 11] = [
    "method",
    "precision",
    "activation_quantization",
    "weight_sparsity",
    "quantization_aware",
    // Each device measures, and those that share a slot of the CPU divide its threads.
    "devices",
    "rank",
    "target_modules",
    "dora",
    "bias",
    "lora_bias",
];
/// Number of settings that a served model has whose adapter is folded in.
const OF_MERGED: usize = 6;

impl Context<'_> {
    /// The load under which models are served, where the file has one or `is_asked` says that a metric needs one.
    pub(super) fn serve(&self, file: &StudyFile, is_asked: bool) -> Result<Option<ServePlan>, SpaceError> {
        let entry = match &file.serve {
            Some(entry) => entry.clone(),
            None if is_asked => ServeEntry::default(),
            None => return Ok(None),
        };
        let least_batch = match entry.mode {
            ServeMode::Together(adapters) if !(2..=MOST_ADAPTERS).contains(&adapters) => {
                return Err(self.rejected_of_serve(
                    "mode",
                    format!(
                        "several adapters are 2 to {MOST_ADAPTERS} of them; write such a number, or `beside` for one"
                    ),
                ));
            }
            ServeMode::Together(adapters) => adapters,
            ServeMode::Merged | ServeMode::Beside => 1,
        };
        let new_tokens = entry.new_tokens.map_or(NEW_TOKENS, usize::from);
        if new_tokens < 2 {
            return Err(self.rejected_of_serve(
                "new_tokens",
                "the time from one token to the next takes two tokens; write 2 or more".into(),
            ));
        }
        Ok(Some(ServePlan {
            mode: entry.mode,
            batch: entry.batch.map_or(least_batch, usize::from),
            context: entry.context.map(usize::from),
            new_tokens,
        }))
    }

    fn rejected_of_serve(&self, key: &str, message: String) -> SpaceError {
        SpaceError::Rejected {
            at: self.document.value(&["serve", key]),
            message,
        }
    }
}

/// Lets the time of a served token depend on what a served model has alone, and not on what changes its training.
pub(super) fn limit_serving(
    objectives: &[Objective],
    constraints: &[Constraint],
    plan: &TrialPlan,
    space: &mut SearchSpace,
) {
    let objectives = objectives.iter().map(|objective| &objective.metric);
    let asked = objectives.chain(constraints.iter().map(|constraint| &constraint.metric));
    let mut others: Vec<String> = [THROUGHPUT, PEAK_MEMORY, LOSS].map(str::to_owned).into();
    let mut is_served = false;
    for metric in asked {
        match metric == SERVE_MS_PER_TOKEN {
            true => is_served = true,
            false if others.contains(metric) => {}
            false => others.push(metric.clone()),
        }
    }
    if !is_served {
        return;
    }
    let serve = plan.measure.as_ref().and_then(|measure| measure.serve);
    let served = match serve.is_some_and(|serve| serve.mode == ServeMode::Merged) {
        true => &SERVED[..OF_MERGED],
        false => &SERVED[..],
    };
    let of_training = |name: &str| !served.contains(&name);
    let parameters = space.parameters.iter_mut();
    for parameter in parameters.filter(|one| one.affects.is_none() && of_training(&one.name)) {
        parameter.affects = Some(others.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::settings::setting;

    #[test]
    fn settings_of_served_models_are_settings() {
        assert!(SERVED.into_iter().all(|name| setting(name).is_some()));
    }
}
