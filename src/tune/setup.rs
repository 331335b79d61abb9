//! What a search is told before it begins.

use std::sync::Arc;

use super::predictions::Predictions;
use super::{Forecast, Tuner};
use peft_tune_kernels::Kernels;

impl Tuner<'_> {
    /// Runs trials in this form of the ops: what earlier ones measured in another form is measured again.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Kernels) -> Self {
        self.forms.choose(kernels);
        self.memory.set_kernels(kernels);
        self
    }

    /// The form that trials run in takes the place of this one, in which a kernel failed earlier.
    #[must_use]
    pub fn instead_of(mut self, failed: Option<Kernels>) -> Self {
        self.forms.choose_instead_of(failed);
        self
    }

    /// Predicts every trial, stores what is expected of it, and passes over those that are certain not to fit. Comes behind
    /// [`Tuner::with_kernels`]: trials of another form of the ops do not correct what is expected of this one.
    #[must_use]
    pub fn with_forecast(mut self, forecast: Arc<Forecast>) -> Self {
        let mut predictions = Predictions::new(forecast);
        let trials = self.trials.all().iter();
        let of_this_form = trials.filter(|trial| self.forms.is_current(trial.number));
        of_this_form.for_each(|trial| predictions.learn(trial));
        self.predictions = Some(predictions);
        self
    }
}
