//! Settings of a search before it begins.

use std::sync::Arc;

use super::predictions::Predictions;
use super::{Forecast, Inputs, TargetForecast, Tuner};
use peft_tune_core::study::Params;
use peft_tune_kernels::Kernels;

impl Tuner<'_> {
    /// Runs trials in this form of the ops: what earlier ones measured in another form is measured again.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Kernels) -> Self {
        self.forms.choose(kernels);
        self
    }

    /// Notes that the form that trials run in takes the place of this one, in which a kernel failed earlier.
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

    /// Predicts every trial for the stack that the study is for, and passes over those that do not fit there.
    #[must_use]
    pub fn with_target(mut self, target: Arc<TargetForecast>) -> Self {
        self.target = Some(target);
        self
    }

    /// Begins a study that has no trial yet with this setting.
    #[must_use]
    pub fn with_baseline(mut self, baseline: Option<Params>) -> Self {
        self.queue.begin_with(baseline);
        self
    }

    /// Rehearses the study before its first trial, and where trials fail alike. A command is not rehearsed: what a part of it
    /// costs is not known.
    #[must_use]
    pub fn with_rehearsal(mut self) -> Self {
        self.failures.rehearse(self.parts.study.backend.trains_recipes());
        self
    }

    /// Sets whether every failure counts as its setting's, however many fail alike.
    #[must_use]
    pub fn keeping_going(mut self, keep_going: bool) -> Self {
        self.failures.keep_going(keep_going);
        self
    }

    /// Lets each trial lose so many attempts before it is set aside as failed; 3 by default.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u64) -> Self {
        self.failures.allow(attempts);
        self
    }

    /// Waits at the end for so many seconds at most for moments in which other programs leave the processors alone;
    /// some seconds, where nothing is said.
    #[must_use]
    pub fn waiting_for_quiet(mut self, seconds: Option<f64>) -> Self {
        self.disturbed.wait_at_most(seconds);
        self
    }

    /// Ends the search where one of these files changes under way.
    #[must_use]
    pub fn with_inputs(mut self, inputs: Inputs) -> Self {
        self.inputs = inputs;
        self
    }
}
