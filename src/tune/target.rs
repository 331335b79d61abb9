//! Needs of a study's settings in the stack that they are for: predicted as a trial begins, and stored with it.

use std::sync::{Arc, OnceLock};

use super::TrainingRows;
use super::remembered::Remembered;
use super::stack_costs::mean_micro_batch;
use crate::report::bytes;
use crate::space::{SpaceError, Study, Target, recipe_for};
use peft_tune_core::objective::{TARGET_PEAK_MEMORY, TARGET_SHORTFALL, TARGET_THROUGHPUT};
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{Fit, ModelShape, StackError, StackPrediction, StackSetting};
use peft_tune_core::recipe::{BatchSettings, Recipe};
use peft_tune_core::study::{Metrics, Params};
use peft_tune_search::Prior;

/// Values of one parameter that are looked at.
const MOST_VALUES: u64 = 64;

/// Predicts the trials of one study for its target. Settings that are the same there are predicted once.
#[derive(Debug)]
pub struct TargetForecast {
    study: Study,
    target: Target,
    shape: ModelShape,
    rows: OnceLock<Arc<TrainingRows>>,
    /// Predictions by what decides them there, in words.
    known: Remembered<String, Result<Metrics, Arc<str>>>,
}

impl TargetForecast {
    /// A forecast for the stack of `study` and a model of these dimensions; `None` where the study is for no other stack.
    ///
    /// # Errors
    /// A value of the study's file that the stack cannot run, pointed at.
    pub fn new(study: &Study, shape: ModelShape) -> Result<Option<Self>, SpaceError> {
        let Some(target) = study.target else {
            return Ok(None);
        };
        let forecast = Self {
            study: study.clone(),
            target,
            shape,
            rows: OnceLock::new(),
            known: Remembered::default(),
        };
        forecast.check_values()?;
        Ok(Some(forecast))
    }

    /// Refuses values that the stack cannot run, alone and beside what the file fixes.
    fn check_values(&self) -> Result<(), SpaceError> {
        let study = &self.study;
        let cannot = |params: &Params| {
            let recipe = recipe_for(study, params).ok()?;
            match self.setting(&recipe).check(&self.shape) {
                Err(error @ StackError::CannotRun { .. }) => Some(error.to_string()),
                _ => None,
            }
        };
        if let Some(message) = cannot(&Params::new()) {
            return Err(study.reject(&["target_stack"], message));
        }
        for parameter in &study.space.parameters {
            let values = &parameter.distribution;
            let count = values.cardinality().unwrap_or(0).min(MOST_VALUES);
            for value in (0..count).filter_map(|index| values.nth(index)) {
                if let Some(message) = cannot(&[(parameter.name.clone(), value)].into()) {
                    return Err(study.reject(&["space", &parameter.name], message));
                }
            }
        }
        Ok(())
    }

    /// Takes the lengths of the training rows, before anything is predicted: speeds are then those of their tokens, without padding.
    pub(super) fn know_rows(&self, rows: &Arc<TrainingRows>) {
        // Who tells them twice tells the same.
        let _ = self.rows.set(Arc::clone(rows));
    }

    fn setting(&self, recipe: &Recipe) -> StackSetting {
        self.target.stack.setting_of(recipe)
    }

    /// The predictions for a setting as metrics of its trial; none for params that make no recipe, as a trial says
    /// itself.
    ///
    /// # Errors
    /// Why it is not worth a training: it does not fit there, or the stack cannot run it.
    pub fn metrics(&self, params: &Params) -> Result<Metrics, Arc<str>> {
        let Ok(recipe) = recipe_for(&self.study, params) else {
            return Ok(Metrics::default());
        };
        let setting = self.setting(&recipe);
        let batch = &recipe.batch;
        let key = format!("{setting:?} {} {}", batch.packing, batch.group_by_length);
        self.known.get_or(key, || self.predict(&setting, batch))
    }

    fn predict(&self, setting: &StackSetting, batch: &BatchSettings) -> Result<Metrics, Arc<str>> {
        let predicted = |setting| {
            predict::stack::predict(&self.shape, setting, self.target.device)
                .map_err(|error| Arc::from(error.to_string()))
        };
        let prediction = predicted(setting)?;
        if prediction.verdict.is_some_and(|verdict| verdict.fit == Fit::DoesNot) {
            return Err(self.no_room(&prediction).into());
        }
        let mut metrics = metrics_of(&prediction);
        let rows = self.rows.get();
        let rows = rows.and_then(|rows| rows.of(batch));
        if let (Some(_), Some(rows)) = (prediction.tokens_per_s, rows) {
            // The peak is that of full rows, the speed that of the mean micro-batch, of which padding is no work done.
            let (usual, share) = mean_micro_batch(setting, batch, rows);
            let speed = match usual == *setting {
                true => prediction.tokens_per_s,
                false => predicted(&usual)?.tokens_per_s,
            };
            if let Some(speed) = speed {
                metrics.insert(TARGET_THROUGHPUT, share * speed);
            }
        }
        Ok(metrics)
    }

    fn no_room(&self, prediction: &StackPrediction) -> String {
        let verdict = prediction
            .verdict
            .map(|verdict| (verdict.least_bytes, verdict.usable_bytes));
        let (least, usable) = verdict.unwrap_or_default();
        format!(
            "predicted not to fit {}: it needs {} at the least, and {} are usable; lower `micro_batch` or `sequence_length`",
            self.target,
            bytes(least as f64),
            bytes(usable as f64)
        )
    }
}

/// A prediction as a trial's metrics.
fn metrics_of(prediction: &StackPrediction) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.insert(TARGET_PEAK_MEMORY, prediction.process_bytes as f64);
    if let Some(tokens_per_s) = prediction.tokens_per_s {
        metrics.insert(TARGET_THROUGHPUT, tokens_per_s);
    }
    if let Some(verdict) = prediction.verdict.filter(|verdict| verdict.fit == Fit::Uncertain) {
        let wanted = verdict.least_bytes + verdict.reserve_bytes;
        metrics.insert(TARGET_SHORTFALL, wanted.saturating_sub(verdict.usable_bytes) as f64);
    }
    metrics
}

impl Prior for TargetForecast {
    fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
        self.metrics(params).ok()?.value(metric)
    }

    fn impossible(&self, params: &Params) -> Option<String> {
        self.metrics(params).err().map(|reason| reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Tool;
    use peft_tune_core::predict::stack::{StackDevice, WeightForm};

    #[test]
    fn what_may_not_fit_says_by_how_much() {
        let config = r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true}"#;
        let shape = ModelShape::from_json("config.json", &serde_json::from_str(config).unwrap()).unwrap();
        let device = StackDevice {
            sheet: predict::device("T4").unwrap(),
        };
        let mut setting = StackSetting::new(Tool::Peft.behaviour(), WeightForm::Nf4);
        let mut seen = [0; 2];
        for length in (1..200).map(|step| step * 64) {
            setting.sequence_length = length;
            let prediction = predict::stack::predict(&shape, &setting, Some(device)).unwrap();
            let metrics = metrics_of(&prediction);
            assert!(metrics.value(TARGET_THROUGHPUT).is_some_and(|speed| speed > 0.0));
            let shortfall = metrics.value(TARGET_SHORTFALL);
            match prediction.verdict.unwrap().fit {
                Fit::Fits | Fit::Unproven => assert_eq!(shortfall, None),
                Fit::Uncertain => assert!(shortfall.is_some_and(|bytes| bytes > 0.0)),
                Fit::DoesNot => break,
            }
            seen[usize::from(shortfall.is_some())] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}
