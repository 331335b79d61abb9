//! Costs that are expected of a study's trials: the knowledge of the machine that samplers start from, and what each
//! trial's prediction says about the next.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::Serialize;

use super::cost_model::{CostModel, workload};
use super::remembered::Remembered;
use super::{TargetForecast, TrainingRows};
use crate::space::{Study, recipe_for};
use crate::tools::Tool;
use peft_tune_core::objective::{Bound, PEAK_MEMORY, SERVE_MS_PER_TOKEN, THROUGHPUT, is_of_target};
use peft_tune_core::predict::{Correction, Imbalance, Prediction, RowLengths, Scaling, Uncertain};
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::recipe::{EpochSteps, Recipe};
use peft_tune_core::space::Parameter;
use peft_tune_core::study::{ParamValue, Params};
use peft_tune_search::Prior;

/// Relative deviation of a predicted time of a served token: ops of few rows are not measured one by one.
const SERVE_DEVIATION: f64 = 0.5;

/// Predicts the trials of one study. Settings that cannot differ in cost are predicted once.
#[derive(Debug)]
pub struct Forecast {
    study: Study,
    costs: CostModel,
    rows: Arc<TrainingRows>,
    /// Parameters that can change throughput or memory.
    counted: Vec<String>,
    /// Memory limit that a trial must keep.
    limit: Option<MemoryLimit>,
    /// Bytes that the device has for trials, one or several.
    device_bytes: Option<f64>,
    /// Predictions by [`Forecast::key`].
    known: Remembered<u64, Result<Prediction, Arc<str>>>,
    /// Forecast of the same settings in the stack that the study is for.
    target: Option<Arc<TargetForecast>>,
}

/// Bytes above which a trial is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryLimit {
    pub bytes: f64,
    pub from: LimitSource,
}

/// Source of the limit on a trial's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitSource {
    /// A constraint of the study on `peak_memory`.
    Constraint,
    /// The study's `memory_limit`.
    Study,
    /// The memory that the device has.
    Device,
}

impl LimitSource {
    /// The source in words for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Constraint => "the study's constraint",
            Self::Study => "the study's memory_limit",
            Self::Device => "what the device has",
        }
    }
}

/// The reason why there is no prediction for a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unpredictable(Arc<str>);

impl Forecast {
    /// A forecast of `study` by the costs of what trains it.
    pub fn new(study: &Study, costs: impl Into<CostModel>, rows: TrainingRows) -> Self {
        let changes_cost = |parameter: &&Parameter| {
            let mut metrics = [THROUGHPUT, PEAK_MEMORY].into_iter();
            metrics.any(|metric| parameter.can_change(metric))
        };
        let parameters = study.space.parameters.iter();
        let counted = parameters
            .filter(changes_cost)
            .map(|parameter| parameter.name.clone())
            .collect();
        let bounds = study
            .constraints
            .iter()
            .filter(|constraint| constraint.metric == PEAK_MEMORY);
        let bounds = bounds.filter_map(|constraint| match constraint.bound {
            Bound::AtMost(limit) => Some(limit),
            Bound::AtLeast(_) => None,
        });
        let limit = |from| move |bytes| MemoryLimit { bytes, from };
        let own = study.memory_limit_bytes.map(|bytes| bytes as f64);
        let trainer = study.base.as_ref().map(|base| base.trainer).unwrap_or_default();
        let costs: CostModel = costs.into();
        let serve = study.plan.measure.as_ref().and_then(|measure| measure.serve);
        let limits = bounds
            .map(limit(LimitSource::Constraint))
            .chain(own.map(limit(LimitSource::Study)));
        Self {
            limit: limits.min_by(|a, b| a.bytes.total_cmp(&b.bytes)),
            device_bytes: own,
            study: study.clone(),
            costs: costs.of_trainer(trainer).serving(serve),
            rows: Arc::new(rows),
            counted,
            known: Remembered::default(),
            target: None,
        }
    }

    /// The memory limit that a trial must keep: the study's limit, its constraint or the device's memory, whichever is
    /// lowest.
    pub fn limit(&self) -> Option<MemoryLimit> {
        self.limit
    }

    /// Takes the device's own memory as a limit too, as far as tensors may have it.
    #[must_use]
    pub fn within(mut self, device_bytes: f64) -> Self {
        let device_bytes = (device_bytes - self.costs.outside_bytes() as f64).max(0.0);
        self.device_bytes = Some(self.device_bytes.map_or(device_bytes, |own| own.min(device_bytes)));
        if self.limit.is_none_or(|limit| device_bytes < limit.bytes) {
            self.limit = Some(MemoryLimit {
                bytes: device_bytes,
                from: LimitSource::Device,
            });
        }
        self
    }

    /// Predicts also what settings cost in the stack that the study is for.
    #[must_use]
    pub fn with_target(mut self, target: Option<Arc<TargetForecast>>) -> Self {
        if let Some(target) = &target {
            target.know_rows(&self.rows);
        }
        self.target = target;
        self
    }

    /// The stack that trains; `None` for the native engine.
    pub fn stack(&self) -> Option<Tool> {
        self.costs.stack()
    }

    /// Whether trials run in the host's memory.
    pub fn is_on_host(&self) -> bool {
        self.costs.is_on_host()
    }

    /// The correction of predictions that is believed before any trial.
    pub fn correction(&self) -> Correction {
        self.costs.correction()
    }

    /// The predicted cost of a setting.
    ///
    /// # Errors
    /// Params that make no recipe, or a recipe that does not fit the model.
    pub fn predict(&self, params: &Params) -> Result<Prediction, Unpredictable> {
        let predicted = self.known.get_or(self.key(params), || self.predict_anew(params));
        predicted.map_err(Unpredictable)
    }

    fn predict_anew(&self, params: &Params) -> Result<Prediction, Arc<str>> {
        let recipe = recipe_for(&self.study, params).map_err(|error| error.to_string())?;
        self.costs.predict(&recipe, self.rows_of(&recipe))
    }

    /// The cost of crowding at experts for a setting; `None` for a model without experts, a machine whose speed is not
    /// known, a setting that cannot be predicted, and another stack.
    pub fn imbalance(&self, params: &Params) -> Option<Imbalance> {
        let recipe = recipe_for(&self.study, params).ok()?;
        self.costs.imbalance(&recipe, self.rows_of(&recipe))
    }

    /// The speed of a setting on its devices against that on one; `None` for one device, where a speed is not known, and for a
    /// setting that cannot be predicted.
    pub fn scaling(&self, params: &Params) -> Option<Scaling> {
        let recipe = recipe_for(&self.study, params).ok()?;
        self.costs.scaling(&recipe, self.rows_of(&recipe))
    }

    /// Rows of a recipe; `None` where their lengths are not known.
    fn rows_of(&self, recipe: &Recipe) -> Option<&RowLengths> {
        self.rows.of(&recipe.batch)
    }

    /// The study that is predicted.
    pub(super) fn study(&self) -> &Study {
        &self.study
    }

    /// Steps of an epoch of a recipe; `None` where the rows are not known.
    pub(super) fn epoch_steps(&self, recipe: &Recipe) -> Option<EpochSteps> {
        let rows = workload(recipe, self.rows_of(recipe)).rows?;
        Some(EpochSteps::new(rows as u64, &recipe.batch))
    }

    /// Whether the memory is predicted to hold the trainings of these recipes at once.
    pub fn holds_together(&self, recipes: &[&Recipe]) -> bool {
        let recipes: Vec<_> = recipes.iter().map(|recipe| (*recipe, self.rows_of(recipe))).collect();
        let bytes = self.device_bytes.unwrap_or(f64::INFINITY);
        self.costs.holds_together(&recipes, bytes)
    }

    /// The sampled values that can change the cost.
    pub fn cost_params(&self, params: &Params) -> Params {
        let counted = params.iter().filter(|(name, _)| self.counted.contains(*name));
        counted.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Hash of the values that can change the cost.
    pub(super) fn key(&self, params: &Params) -> u64 {
        let mut hasher = DefaultHasher::new();
        for name in &self.counted {
            match params.get(name) {
                None => 0u8.hash(&mut hasher),
                Some(ParamValue::Bool(value)) => (1u8, value).hash(&mut hasher),
                Some(ParamValue::Int(value)) => (2u8, value).hash(&mut hasher),
                Some(ParamValue::Float(value)) => (3u8, value.to_bits()).hash(&mut hasher),
                Some(ParamValue::Text(value)) => (4u8, value).hash(&mut hasher),
                Some(ParamValue::List(values)) => (5u8, values).hash(&mut hasher),
            }
        }
        hasher.finish()
    }

    /// Whether so many bytes, taken for exact, keep the limit.
    pub fn keeps_limit(&self, bytes: f64) -> bool {
        self.limit.is_none_or(|limit| bytes <= limit.bytes)
    }

    /// The reason why a predicted setting cannot fit, where that is certain: it is above the limit by more than the
    /// prediction's error.
    pub fn does_not_fit(&self, prediction: &Prediction) -> Option<String> {
        let (bytes, limit) = (prediction.peak_bytes() as f64, self.limit?.bytes);
        (bytes > limit * (1.0 + self.costs.memory_margin())).then(|| {
            let mib = |bytes: f64| bytes / f64::from(1 << 20);
            let place = self
                .stack()
                .map_or_else(String::new, |stack| format!(" in {}", stack.title()));
            format!(
                "predicted to need {:.0} MiB{place}, and {:.0} MiB are allowed; lower `micro_batch` or `sequence_length`",
                mib(bytes),
                mib(limit)
            )
        })
    }

    /// The expected metrics of a prediction after what `correction` has learned.
    pub fn expected_metrics(&self, prediction: &Prediction, correction: &Correction) -> Vec<(&'static str, Uncertain)> {
        let mut metrics = vec![(PEAK_MEMORY, correction.peak_bytes(prediction))];
        if prediction.tokens_per_s() > 0.0 {
            metrics.push((THROUGHPUT, correction.tokens_per_s(prediction)));
        }
        metrics.extend(serve_ms(prediction).map(|expected| (SERVE_MS_PER_TOKEN, expected)));
        metrics
    }
}

impl Prior for Forecast {
    fn expected(&self, params: &Params, metric: &str) -> Option<f64> {
        if is_of_target(metric) {
            return self.target.as_ref()?.expected(params, metric);
        }
        let prediction = self.predict(params).ok()?;
        let value = match metric {
            THROUGHPUT => prediction.tokens_per_s(),
            PEAK_MEMORY => prediction.peak_bytes() as f64,
            SERVE_MS_PER_TOKEN => serve_ms(&prediction)?.value,
            _ => return None,
        };
        (value > 0.0).then_some(value)
    }

    fn impossible(&self, params: &Params) -> Option<String> {
        let there = self.target.as_ref().and_then(|target| target.impossible(params));
        there.or_else(|| match self.predict(params) {
            Ok(prediction) => self.does_not_fit(&prediction),
            Err(error) => Some(error.to_string()),
        })
    }

    fn learns_alike(&self, one: &Params, other: &Params) -> bool {
        let recipes = [one, other].map(|params| recipe_for(&self.study, params));
        let [Ok(one), Ok(mut other)] = recipes else {
            return false;
        };
        let are_whole = !one.precision.is_quantized() && !other.precision.is_quantized();
        other.precision = one.precision;
        are_whole && one == other
    }

    fn models(&self, parameter: &str) -> bool {
        // Of PyTorch's kernels it is known what they compute and keep, and not how fast they are here.
        setting(parameter).is_none_or(|row| !row.is_of_torch())
    }
}

/// Milliseconds that are expected of a served token; `None` where they are not predicted.
pub(super) fn serve_ms(prediction: &Prediction) -> Option<Uncertain> {
    prediction.serve_s.map(|seconds| Uncertain {
        value: 1e3 * seconds,
        deviation: SERVE_DEVIATION,
    })
}
