//! Facts about a trial before, beside and after its one full run: its curve, its early stop, its confirmation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Metrics, Trial, TrialNumber, TrialState};
use crate::objective::{LOSS, LOSS_ROWS, LOSS_ROWS_IN_ALL, OF_LONGER, PEAK_MEMORY};

/// Curve that a trial told on its way: metrics by the number of training steps before them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    last_step: u64,
    /// The values of each metric by step, ascending.
    courses: Vec<(Arc<str>, LearningCurve)>,
}

/// Values by step.
type LearningCurve = Vec<(u64, f64)>;

impl Curve {
    /// Adds what was reported after `step` steps; a value reported again replaces the old one.
    pub fn push(&mut self, step: u64, metrics: &Metrics) {
        self.last_step = self.last_step.max(step);
        for (name, value) in metrics.iter() {
            let course = self.course_mut(name);
            match course.binary_search_by_key(&step, |(at, _)| *at) {
                Ok(at) => course[at].1 = value,
                Err(at) => course.insert(at, (step, value)),
            }
        }
    }

    /// The last step that was reported; 0 before the first.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The values of one metric by step, ascending.
    pub fn of(&self, metric: &str) -> Vec<(u64, f64)> {
        let mut courses = self.courses.iter();
        let course = courses.find(|(name, _)| name.as_ref() == metric);
        course.map(|(_, values)| values.clone()).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.last_step == 0 && self.courses.is_empty()
    }

    /// Forgets all metrics but these, takes their names' text from `names`, and gives spare room back.
    pub fn retain(&mut self, names: &BTreeSet<Arc<str>>) {
        self.courses.retain_mut(|(name, values)| {
            values.shrink_to_fit();
            let known = names.get(name).cloned();
            known.map(|known| *name = known).is_some()
        });
        self.courses.shrink_to_fit();
    }

    fn course_mut(&mut self, name: &str) -> &mut LearningCurve {
        let known = self.courses.iter().position(|(known, _)| known.as_ref() == name);
        let at = known.unwrap_or_else(|| {
            self.courses.push((name.into(), Vec::new()));
            self.courses.len() - 1
        });
        &mut self.courses[at].1
    }
}

/// Why a trial was stopped before it ran all its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Training steps it had done; 0 after the profile phase.
    pub step: u64,
    /// Name of the rule.
    pub rule: String,
    /// The reason with its numbers.
    pub reason: String,
}

/// Values that repeats confirmed of a study's trials, by trial and metric.
pub type Confirmations = BTreeMap<TrialNumber, BTreeMap<String, Confirmed>>;

/// A metric that was measured again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmed {
    /// Mean over the repeats; the highest for peak memory.
    pub value: f64,
    /// Half width of the mean's 95% interval, as a share of the mean.
    pub interval: f64,
    pub repeats: u64,
}

impl Confirmed {
    /// Summary of repeated measurements of `metric`; `None` without any.
    pub fn of(metric: &str, values: &[f64]) -> Option<Self> {
        Self::with_spread(metric, values, &RunSpread::of([values].into_iter()))
    }

    /// Summary of repeated measurements of `metric`, where the spread of all like them is known; `None` without any.
    pub fn with_spread(metric: &str, values: &[f64], spread: &RunSpread) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let mean = mean(values);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            value: if metric == PEAK_MEMORY { highest } else { mean },
            interval: spread.interval(values.len()),
            repeats: values.len() as u64,
        })
    }
}

/// How much runs of one setting differ, as a share of their mean, by all settings that were run more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunSpread {
    /// Sum of squared relative deviations from the mean of their own setting.
    squares: f64,
    freedom: usize,
}

impl RunSpread {
    /// The spread of the runs of each of some settings.
    pub fn of<'a>(settings: impl Iterator<Item = &'a [f64]>) -> Self {
        let mut spread = Self::default();
        for values in settings.filter(|values| !values.is_empty()) {
            let mean = mean(values);
            let deviation = |value: &f64| if mean == 0.0 { 0.0 } else { value / mean - 1.0 };
            spread.squares += values.iter().map(|value| deviation(value).powi(2)).sum::<f64>();
            spread.freedom += values.len() - 1;
        }
        spread
    }

    /// The spread, where it was known before to be about `deviation` with the weight of so many degrees of freedom.
    #[must_use]
    pub fn known_before(self, deviation: f64, freedom: usize) -> Self {
        Self {
            squares: self.squares + freedom as f64 * deviation.powi(2),
            freedom: self.freedom + freedom,
        }
    }

    /// Standard deviation of a run, as a share; 0 where nothing is known.
    pub fn deviation(&self) -> f64 {
        (self.squares / self.freedom.max(1) as f64).sqrt()
    }

    /// Half width of the 95% interval of the mean of so many runs, as a share of it; 1 where nothing is known.
    fn interval(&self, count: usize) -> f64 {
        match self.freedom {
            0 => 1.0,
            freedom => student_95(freedom) * self.deviation() / (count as f64).sqrt(),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The trials with what was confirmed in the place of what was measured once. What a trial did not measure
/// stays unknown, but for the loss of a longer training.
///
/// This is what counts of a trial, for whoever shows, compares or recommends it; the database's view `counted_metric` says
/// the same.
pub fn with_confirmed(history: &[Trial], confirmed: &Confirmations) -> Vec<Trial> {
    let mut history = history.to_vec();
    for trial in &mut history {
        if let (TrialState::Complete { metrics }, Some(values)) = (&mut trial.state, confirmed.get(&trial.number)) {
            for (name, one) in values {
                // A longer training measures what the trial did not.
                let is_longer = OF_LONGER.contains(&name.as_str());
                if is_longer || (one.repeats > 1 && metrics.value(name).is_some()) {
                    metrics.insert(name.clone(), one.value);
                    if name == LOSS {
                        // Repeats are evaluated on all rows.
                        metrics.retain(|name| name != LOSS_ROWS && name != LOSS_ROWS_IN_ALL);
                    }
                }
            }
        }
    }
    history
}

/// Two-sided 95% quantile of Student's t with `freedom` degrees of freedom (1 or more).
pub fn student_95(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604,
        2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518,
        2.0484, 2.0452, 2.0423,
    ];
    // Beyond the table: the first terms of the expansion in 1 / freedom (Abramowitz and Stegun 26.7.5).
    let (z, n) = (1.959_964_f64, freedom as f64);
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n);
    let expanded = z + (z.powi(3) + z) / (4.0 * n) + second;
    TABLE.get(freedom.saturating_sub(1)).copied().unwrap_or(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scipy: stats.t.interval(0.95, 3, mean, stats.sem(values)) of the four values below is 100 +- 2.0543.
    #[test]
    fn the_interval_is_student_s() {
        let confirmed = Confirmed::of("throughput", &[98.5, 99.5, 100.5, 101.5]).unwrap();
        assert_eq!((confirmed.value, confirmed.repeats), (100.0, 4));
        assert!((confirmed.interval - 0.020_543).abs() < 1e-6, "{confirmed:?}");
        assert!((student_95(31) - 2.0395).abs() < 1e-3 && (student_95(1000) - 1.9623).abs() < 1e-3);
    }

    #[test]
    fn one_measurement_says_nothing_about_its_spread_and_memory_takes_the_highest() {
        assert_eq!(Confirmed::of("throughput", &[5.0]).unwrap().interval, 1.0);
        assert_eq!(Confirmed::of(PEAK_MEMORY, &[5.0, 7.0]).unwrap().value, 7.0);
        assert_eq!(Confirmed::of("throughput", &[]), None);
        assert_eq!(Confirmed::of("loss", &[0.0, 0.0]).unwrap().interval, 0.0);
    }

    #[test]
    fn settings_that_were_run_as_often_teach_each_others_spread() {
        let (quiet, other): (&[f64], &[f64]) = (&[99.0, 101.0], &[198.0, 202.0]);
        let alone = Confirmed::of("throughput", quiet).unwrap().interval;
        let together = RunSpread::of([quiet, other].into_iter());
        let interval = |spread: &RunSpread| Confirmed::with_spread("throughput", quiet, spread).unwrap().interval;
        // One degree of freedom has a factor of 12.7, two have 4.3; the spread is that of both.
        assert!((alone / interval(&together) - 12.7062 / 4.3027).abs() < 1e-9);
        // Known before to be 1%, with the weight of two: s = sqrt((2 * 0.01^2 + 2 * 0.01^2) / 3).
        let known = RunSpread::of([quiet].into_iter()).known_before(0.01, 2);
        let expected = 3.1824 * (4e-4_f64 / 3.0 / 2.0).sqrt();
        assert!((interval(&known) - expected).abs() < 1e-12);
    }

    #[test]
    fn a_curve_keeps_each_metric_by_step() {
        let mut curve = Curve::default();
        curve.push(4, &[("loss", 3.0)].into());
        curve.push(2, &[("loss", 4.0), ("f1", 1.0)].into());
        curve.push(4, &[("f1", 2.0)].into());
        assert_eq!(curve.of("loss"), [(2, 4.0), (4, 3.0)]);
        assert_eq!(curve.of("f1"), [(2, 1.0), (4, 2.0)]);
        assert_eq!(curve.last_step(), 4);
        curve.retain(&["f1".into()].into());
        assert_eq!(
            (curve.of("loss"), curve.of("f1")),
            (Vec::new(), vec![(2, 1.0), (4, 2.0)])
        );
        assert_eq!(curve.last_step(), 4);
    }
}
