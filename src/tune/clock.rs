//! Time that the runs of a study took so far, and what is expected of others by that.

use super::Repeat;
use crate::store::SpentTime;

/// Runs that took time: their number, and their seconds together.
#[derive(Clone, Copy, Debug, Default)]
struct MeanSeconds {
    count: u64,
    sum_s: f64,
}

impl MeanSeconds {
    fn add(&mut self, seconds: f64) {
        if seconds > 0.0 {
            self.count += 1;
            self.sum_s += seconds;
        }
    }

    fn seconds(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_s / self.count as f64)
    }
}

/// Time that the runs of a study took so far, and what is expected of others by that.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// Seconds by what they went to, earlier searches included.
    spent: SpentTime,
    trainings: MeanSeconds,
    /// Repeats of a cost that confirm it.
    costs: MeanSeconds,
    /// Repeats of disturbed trials.
    repeats: MeanSeconds,
    /// Seconds that whole trials were predicted to take, and that they took.
    predicted_s: f64,
    measured_s: f64,
    /// Whether the next setting was found to take too long. It may fit once a trial under way took less than expected.
    is_out: bool,
}

impl Clock {
    /// A clock of a study that has spent this; `trainings` are the seconds of its trials but for variants.
    pub(super) fn new(spent: SpentTime, trainings: impl Iterator<Item = f64>) -> Self {
        let mut clock = Self {
            spent,
            ..Self::default()
        };
        trainings.for_each(|seconds| clock.trainings.add(seconds));
        clock
    }

    /// Counts a trial, or an attempt at one, that is over.
    pub(super) fn trial_ended(&mut self, wall_s: f64, is_variant: bool) {
        self.spent.trials_s += wall_s;
        self.is_out = false;
        if !is_variant {
            self.trainings.add(wall_s);
        }
    }

    /// Counts an attempt at a trial that was lost.
    pub(super) fn attempt_lost(&mut self, wall_s: f64) {
        self.spent.trials_s += wall_s;
    }

    /// Compares what a whole trial took with what was predicted of it.
    pub(super) fn compare(&mut self, predicted_s: f64, measured_s: f64) {
        self.predicted_s += predicted_s;
        self.measured_s += measured_s;
    }

    /// Notes that the next setting takes too long.
    pub(super) fn run_out(&mut self) {
        self.is_out = true;
    }

    /// Notes that trials may go on.
    pub(super) fn go_on(&mut self) {
        self.is_out = false;
    }

    /// Whether the next setting was found to take too long.
    pub(super) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Seconds that the runs took by what they went to, earlier searches included.
    pub(super) fn spent(&self) -> SpentTime {
        self.spent
    }

    /// Counts seconds in which nothing ran, so that repeats of disturbed trials meet a quiet machine.
    pub(super) fn waited(&mut self, seconds: f64) {
        self.spent.measuring_again_s += seconds;
    }

    /// Counts a repeat of a disturbed trial.
    pub(super) fn measured_again(&mut self, wall_s: f64) {
        self.spent.measuring_again_s += wall_s;
        self.repeats.add(wall_s);
    }

    /// Counts a run that confirmed a trial, or failed to.
    pub(super) fn confirmed(&mut self, repeat: Repeat, wall_s: f64, has_succeeded: bool) {
        self.spent.confirming_s += wall_s;
        let is_one = u64::from(has_succeeded);
        match repeat {
            Repeat::Longer { .. } => self.spent.longer_trainings += is_one,
            Repeat::Loss { .. } => self.spent.repeats += is_one,
            Repeat::Cost => {
                self.spent.repeats += is_one;
                self.costs.add(wall_s);
            }
        }
    }

    /// Seconds of a trial in the mean, variants left out; `None` before the first that took time.
    pub(super) fn trial_s(&self) -> Option<f64> {
        self.trainings.seconds()
    }

    /// Seconds of a repeat of a cost in the mean; `None` before the first.
    pub(super) fn cost_s(&self) -> Option<f64> {
        self.costs.seconds()
    }

    /// Seconds of a repeat of a disturbed trial in the mean; `None` before the first.
    pub(super) fn repeat_s(&self) -> Option<f64> {
        self.repeats.seconds()
    }

    /// Seconds that are expected of a trial, given those that are predicted of it: as many times the predicted ones as
    /// earlier trials took, and the mean where nothing can be compared.
    pub(super) fn expected_s(&self, predicted_s: Option<f64>) -> f64 {
        match (predicted_s, self.trial_s()) {
            (Some(predicted), _) if self.predicted_s > 0.0 => predicted * self.measured_s / self.predicted_s,
            (_, Some(mean)) => mean,
            (Some(predicted), None) => predicted,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_expects_the_mean_until_it_can_compare_predictions() {
        let mut clock = Clock::new(SpentTime::default(), [].into_iter());
        assert_eq!((clock.expected_s(None), clock.expected_s(Some(3.0))), (0.0, 3.0));
        clock.trial_ended(4.0, false);
        clock.trial_ended(8.0, false);
        // Variants are no trainings, and what was taken over took no time.
        clock.trial_ended(1.0, true);
        clock.trial_ended(0.0, false);
        assert_eq!((clock.expected_s(None), clock.expected_s(Some(3.0))), (6.0, 6.0));
        assert_eq!(clock.spent.total_s(), 13.0);
        clock.compare(2.0, 5.0);
        assert_eq!((clock.expected_s(None), clock.expected_s(Some(3.0))), (6.0, 7.5));
    }
}
