//! How fast a setting's model answers, once it is trained: a fresh adapter costs what a trained one costs, so that it is measured with the
//! setting's other costs. Settings that are served alike are measured once in a process.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::interruption::{Interruption, failure, invalid};
use super::metric_rows::SERVE_S;
use super::trial::TrialRun;
use peft_tune_core::objective::SERVE_MS_PER_TOKEN;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{FailReason, Metrics, Phase, ServeMode, ServePlan};
use peft_tune_engine::profile::{InferenceLoad, InferencePoint, measure_inference};
use peft_tune_engine::{BaseModel, Generator, TrainError};
use peft_tune_kernels::device;

/// Seconds of a measurement, behind the first three answers.
const BUDGET_S: f64 = 0.5;

impl TrialRun<'_> {
    /// Measures the time of a token under the load that the study serves models under.
    pub(super) fn measure_serving(&self, plan: &ServePlan, metrics: &mut Metrics) -> Result<(), Interruption> {
        let began = Instant::now();
        let mut alike = ServePlan::served(self.recipe);
        // One that is folded in leaves the weights of the base model, with other values.
        alike.adapter = alike.adapter.filter(|_| plan.mode != ServeMode::Merged);
        let served = (alike, *plan);
        let known = || self.loaded.served.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().iter().find(|(one, _)| *one == served).map(|(_, point)| *point);
        let point = match before {
            Some(point) => {
                metrics.insert(SERVE_S, 0.0);
                point
            }
            None => {
                if self.is_late() {
                    return Err(self.timed_out());
                }
                // The memory of all this is none of the setting's.
                self.loaded.memory.set_limit(None);
                let point = self.served_point(&served.0, plan);
                device::forget_scratch();
                self.loaded.memory.set_limit(self.request.memory_limit_bytes);
                self.loaded.memory.reset_peak();
                // Also where it failed: the time without a result says what failed.
                metrics.insert(SERVE_S, began.elapsed().as_secs_f64());
                let point = point?;
                if self.is_late() {
                    return Err(self.timed_out());
                }
                known().push((served, point));
                point
            }
        };
        metrics.insert(SERVE_MS_PER_TOKEN, 1e3 * point.token.p50_s);
        metrics.insert("serve_first_token_ms", 1e3 * point.first_token.p50_s);
        metrics.insert("serve_tokens_per_s", point.decode_tokens_per_s);
        Ok(())
    }

    fn served_point(&self, served: &Recipe, plan: &ServePlan) -> Result<InferencePoint, Interruption> {
        let base = self
            .loaded
            .base
            .open()
            .map_err(|error| failure(error, Phase::Evaluate))?;
        let positions = base.architecture().max_positions;
        let context = plan.context_in(positions);
        if context + plan.new_tokens > positions {
            return Err(Interruption::Failed(FailReason::Invalid {
                message: format!(
                    "prompts of {context} tokens and {} new ones need {} positions, and this model has {positions}; lower \
                     `serve.context` or `serve.new_tokens`",
                    plan.new_tokens,
                    context + plan.new_tokens
                ),
            }));
        }
        let load = InferenceLoad {
            batch: plan.batch,
            prompt_tokens: context,
            new_tokens: plan.new_tokens,
        };
        let point = generator(base, served, plan.mode)
            .and_then(|mut generator| measure_inference(&mut generator, load, BUDGET_S, 0));
        point.map_err(|error| match error.out_of_memory() || error.lost_device() {
            true => failure(error, Phase::Evaluate),
            // Adapters that cannot be served like this.
            false => invalid(error),
        })
    }
}

/// The model that answers.
fn generator(base: Arc<BaseModel>, served: &Recipe, mode: ServeMode) -> Result<Generator, TrainError> {
    match mode {
        _ if served.adapter.is_none() => Generator::new(base, None),
        ServeMode::Merged | ServeMode::Beside => Generator::with_fresh_adapter(base, served),
        ServeMode::Together(adapters) => Generator::with_fresh_adapters(base, served, adapters),
    }
}
