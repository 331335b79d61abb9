//! What each trial is expected to measure: predicted before it runs, stored, and corrected by what trials measure.

use std::sync::Arc;

use super::cost_survey::trial_s;
use super::propose::Proposed;
use super::{Forecast, TuneError, Tuner};
use crate::store::PredictionRecord;
use peft_tune_core::objective::{PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::predict::Correction;
use peft_tune_core::study::{Metrics, Params, Trial, disturbed};
use peft_tune_search::next_variant;

/// Trainings for one variant that may be measured.
const VARIANTS: u64 = 2;
/// Variants that may be measured however few trainings there are.
const FEWEST_VARIANTS: u64 = 8;

/// A forecast with what trials have taught about it.
pub(super) struct Predictions {
    forecast: Arc<Forecast>,
    correction: Correction,
}

impl Predictions {
    /// Takes what a trial measured itself into the predictions of the next; not a throughput that something else disturbed.
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
    fn throughput(&self, params: &Params) -> Option<f64> {
        Some(self.correction.tokens_per_s(&self.forecast.predict(params).ok()?).value)
    }

    /// Logarithm of a measured throughput over what is expected of the setting by now; `None` where one of them is not known.
    pub(super) fn ratio(&self, params: &Params, metrics: &Metrics) -> Option<f64> {
        let measured = metrics.value(THROUGHPUT).filter(|value| *value > 0.0)?;
        Some((measured / self.throughput(params)?).ln()).filter(|ratio| ratio.is_finite())
    }
}

impl Tuner<'_> {
    /// Predicts every trial, stores what is expected of it, and passes over those that are certain not to fit. Comes behind
    /// [`Tuner::with_kernels`]: trials of another form of the ops do not correct what is expected of this one.
    #[must_use]
    pub fn with_forecast(mut self, forecast: Arc<Forecast>) -> Self {
        let correction = forecast.correction();
        let mut expecting = Predictions { forecast, correction };
        let of_this_form = self
            .trials
            .all()
            .iter()
            .filter(|trial| self.forms.is_current(trial.number));
        of_this_form.for_each(|trial| expecting.learn(trial));
        self.expecting = Some(expecting);
        self
    }

    /// The variant of a trained setting to measure next, once nothing is left to train; `None` where none would change what
    /// the study says, or so many are measured that it is time to end.
    pub(super) fn next_variant(&self) -> Option<Proposed> {
        let Predictions { forecast, .. } = self.expecting.as_ref()?;
        let begun = self.trials.variants();
        let trained = (self.trials.all().len() as u64).saturating_sub(begun);
        if begun >= (trained / VARIANTS).max(FEWEST_VARIANTS) || !self.has_time_for_variant() {
            return None;
        }
        let params = next_variant(&self.problem, self.trials.all(), forecast.as_ref())?;
        (!self.has_to_wait(&params)).then_some(Proposed { params, score: None })
    }

    /// Tokens per second that are expected of a setting by now.
    pub(super) fn expected_throughput(&self, params: &Params) -> Option<f64> {
        self.expecting.as_ref()?.throughput(params)
    }

    /// Seconds that a trial of a setting is predicted to take with all of its phases, loading not counted; `None` where nothing
    /// is.
    pub(super) fn predicted_trial_s(&self, params: &Params) -> Option<f64> {
        let Predictions { forecast, correction } = self.expecting.as_ref()?;
        let prediction = forecast.predict(params).ok()?;
        let tokens_per_s = correction.tokens_per_s(&prediction).value;
        let seconds = trial_s(self.parts.study, params, prediction.tokens, tokens_per_s);
        (seconds.is_finite() && seconds > 0.0).then_some(seconds)
    }

    /// Stores what is expected of a trial; returns why it is not worth a try, where it is not.
    pub(super) async fn expect(&self, trial: &Trial) -> Result<Option<String>, TuneError> {
        let Some(Predictions { forecast, correction }) = &self.expecting else {
            return Ok(None);
        };
        // Params without a prediction make no recipe: the trial says so itself.
        let Ok(prediction) = forecast.predict(&trial.params) else {
            return Ok(None);
        };
        let metrics = forecast.expected_metrics(&prediction, correction).into_iter();
        let records: Vec<PredictionRecord> = metrics
            .map(|(metric, expected)| PredictionRecord {
                metric: metric.to_owned(),
                value: expected.value,
                deviation: expected.deviation,
            })
            .collect();
        let (store, id) = (self.parts.store, self.parts.id);
        store.record_predictions(id, trial.number, &records).await?;
        let parts: Vec<(&str, u64)> = prediction
            .bytes
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(part, bytes)| (part.name(), bytes))
            .collect();
        store.record_predicted_parts(id, trial.number, &parts).await?;
        Ok(forecast.does_not_fit(&prediction))
    }
}
