//! What each trial is expected to measure: predicted before it runs, stored, and corrected by what trials measure.

use std::sync::Arc;

use super::{Forecast, TuneError, Tuner};
use crate::store::PredictionRecord;
use peft_tune_core::objective::{PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::predict::Correction;
use peft_tune_core::study::Trial;

/// A forecast with what trials have taught about it.
pub(super) struct Expectations {
    forecast: Arc<Forecast>,
    correction: Correction,
}

impl Expectations {
    /// Takes what a trial measured itself into the predictions of the next.
    pub(super) fn learn(&mut self, trial: &Trial) {
        let Some(metrics) = trial.state.metrics() else { return };
        if let Ok(prediction) = self.forecast.predict(&trial.params) {
            let (throughput, memory) = (metrics.value(THROUGHPUT), metrics.value(PEAK_MEMORY));
            self.correction.learn(&prediction, throughput, memory);
        }
    }
}

impl Tuner<'_> {
    /// Predicts every trial, stores what is expected of it, and passes over those that are certain not to fit. Comes behind
    /// [`Tuner::with_kernels`]: trials of another form of the ops do not correct what is expected of this one.
    #[must_use]
    pub fn with_forecast(mut self, forecast: Arc<Forecast>) -> Self {
        let correction = forecast.correction();
        let mut expecting = Expectations { forecast, correction };
        let of_this_form = self.history.iter().filter(|trial| self.is_of_this_form(trial.number));
        of_this_form.for_each(|trial| expecting.learn(trial));
        self.expecting = Some(expecting);
        self
    }

    /// Stores what is expected of a trial; returns why it is not worth a try, where it is not.
    pub(super) async fn expect(&self, trial: &Trial) -> Result<Option<String>, TuneError> {
        let Some(Expectations { forecast, correction }) = &self.expecting else {
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
