//! Measurements that are expected of each trial: predicted before it runs, stored, and corrected by what trials
//! measure.

use std::sync::Arc;

use super::Forecast;
use super::cost_survey::trial_s;
use super::trials::Trials;
use crate::store::{PredictionRecord, Store, StoreError, StudyId};
use peft_tune_core::objective::{PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::predict::Correction;
use peft_tune_core::study::{Metrics, Params, Trial, disturbed};
use peft_tune_search::{Problem, next_untold, next_variant};

/// Trainings for each variant that may be measured.
const VARIANTS: u64 = 2;
/// Variants that may be measured however few trainings there are.
const FEWEST_VARIANTS: u64 = 8;

/// A forecast with what trials have taught about it.
pub(super) struct Predictions {
    forecast: Arc<Forecast>,
    correction: Correction,
}

impl Predictions {
    /// A forecast that no trial has corrected.
    pub(super) fn new(forecast: Arc<Forecast>) -> Self {
        let correction = forecast.correction();
        Self { forecast, correction }
    }

    /// Corrects the predictions of the next trials by what a trial measured itself; not by a throughput that something
    /// else disturbed.
    pub(super) fn learn(&mut self, trial: &Trial) {
        let Some(metrics) = trial.state.metrics() else { return };
        let throughput = metrics.value(THROUGHPUT).filter(|_| disturbed(metrics).is_none());
        if let Ok(prediction) = self.forecast.predict(&trial.params) {
            self.correction
                .learn(&prediction, throughput, metrics.value(PEAK_MEMORY));
        }
    }

    /// Forgets what trials taught: those to come are computed in another form of the ops.
    pub(super) fn forget(&mut self) {
        self.correction = self.forecast.correction();
    }

    /// Tokens per second that are expected of a setting by now.
    pub(super) fn throughput(&self, params: &Params) -> Option<f64> {
        Some(self.correction.tokens_per_s(&self.forecast.predict(params).ok()?).value)
    }

    /// Logarithm of a measured throughput over what is expected of the setting by now; `None` where one of them is not known.
    pub(super) fn ratio(&self, params: &Params, metrics: &Metrics) -> Option<f64> {
        let measured = metrics.value(THROUGHPUT).filter(|value| *value > 0.0)?;
        Some((measured / self.throughput(params)?).ln()).filter(|ratio| ratio.is_finite())
    }

    /// Seconds that a trial of a setting is predicted to take with all of its phases, loading not counted; `None`
    /// without a prediction.
    pub(super) fn trial_s(&self, params: &Params) -> Option<f64> {
        let prediction = self.forecast.predict(params).ok()?;
        let tokens_per_s = self.correction.tokens_per_s(&prediction).value;
        let seconds = trial_s(&self.forecast, params, prediction.tokens, tokens_per_s)?;
        (seconds.is_finite() && seconds > 0.0).then_some(seconds)
    }

    /// The variant of a trained setting to measure next; `None` where none would change what the study says, or so many are
    /// measured that it is time to end.
    pub(super) fn next_variant(&self, problem: &Problem, trials: &Trials) -> Option<Params> {
        (Self::variants_left(trials) > 0)
            .then(|| next_variant(problem, trials.all(), self.forecast.as_ref()))
            .flatten()
    }

    /// Variants that may still be measured behind so many trainings.
    pub(super) fn variants_left(trials: &Trials) -> u64 {
        let begun = trials.variants();
        let trained = (trials.all().len() as u64).saturating_sub(begun);
        (trained / VARIANTS).max(FEWEST_VARIANTS).saturating_sub(begun)
    }

    /// The setting to measure next for the cost of a value that predictions do not tell; `None` where each is known, or where as many
    /// variants as trainings are measured.
    pub(super) fn next_untold(&self, problem: &Problem, trials: &Trials) -> Option<Params> {
        let begun = trials.variants();
        let trained = (trials.all().len() as u64).saturating_sub(begun);
        let next = || next_untold(problem, trials.all(), self.forecast.as_ref());
        (begun < trained).then(next).flatten()
    }

    /// Stores the predictions of a trial; returns why it is not worth a try, where it is not.
    ///
    /// # Errors
    /// The database cannot be written.
    pub(super) async fn record(&self, store: &Store, id: StudyId, trial: &Trial) -> Result<Option<String>, StoreError> {
        // Params without a prediction make no recipe: the trial says so itself.
        let Ok(prediction) = self.forecast.predict(&trial.params) else {
            return Ok(None);
        };
        let metrics = self
            .forecast
            .expected_metrics(&prediction, &self.correction)
            .into_iter();
        let records: Vec<PredictionRecord> = metrics
            .map(|(metric, expected)| PredictionRecord {
                metric: metric.to_owned(),
                value: expected.value,
                deviation: expected.deviation,
            })
            .collect();
        store.predictions().record(id, trial.number, &records).await?;
        let parts: Vec<(&str, u64)> = prediction
            .bytes
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(part, bytes)| (part.name(), bytes))
            .collect();
        store.predictions().record_parts(id, trial.number, &parts).await?;
        Ok(self.forecast.does_not_fit(&prediction))
    }
}
