//! What is known of a trial before, beside and after its one full run: its curve, its early stop, its confirmation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Metrics, Trial, TrialNumber, TrialState};
use crate::objective::{FULL_TOKENS, LONGER_TOKENS, LOSS, LOSS_LONGER, LOSS_ROWS, LOSS_ROWS_IN_ALL, PEAK_MEMORY};

/// What a trial told on its way: metrics by the number of training steps before them.
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
    /// What repeated measurements of `metric` say together; `None` without any.
    pub fn of(metric: &str, values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        // One value says nothing about its own spread.
        let interval = match values.len() {
            1 => 1.0,
            _ if mean == 0.0 => 0.0,
            n => student_95(n - 1) * (variance / count).sqrt() / mean.abs(),
        };
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            value: if metric == PEAK_MEMORY { highest } else { mean },
            interval,
            repeats: values.len() as u64,
        })
    }
}

/// The trials with what was confirmed in the place of what was measured once. What a trial did not measure
/// stays unknown, but for the loss of a longer training.
///
/// This is what counts of a trial, for whoever shows, compares or recommends it; the database's view `counted_metric` says
/// the same.
pub fn with_confirmed(history: &[Trial], confirmed: &BTreeMap<TrialNumber, BTreeMap<String, Confirmed>>) -> Vec<Trial> {
    let mut history = history.to_vec();
    for trial in &mut history {
        if let (TrialState::Complete { metrics }, Some(values)) = (&mut trial.state, confirmed.get(&trial.number)) {
            for (name, one) in values {
                // A longer training measures what the trial did not.
                let is_longer = [LOSS_LONGER, LONGER_TOKENS, FULL_TOKENS].contains(&name.as_str());
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
