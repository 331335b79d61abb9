//! Measurements that something else on the machine slowed down.
//!
//! | metric | unit | meaning |
//! |---|---|---|
//! | `disturbed` | 1 | share of the throughput that the measurement may have lost, in (0, 1); absent where it was quiet |
//! | `throughput_interval` | 1 | half width of the throughput's interval; at least d / (1 - d) where d is `disturbed` |
//!
//! A disturbance only takes time away. The upper end of the interval, throughput x (1 + d / (1 - d)), is what the setting
//! may reach in peace; the lower end says nothing that the value does not say.

use super::Metrics;
use crate::objective::THROUGHPUT;

/// Metric of a disturbed measurement: the share of the throughput that it may have lost.
pub const DISTURBED: &str = "disturbed";
/// Metric: half width of the throughput's interval, as a share.
pub const THROUGHPUT_INTERVAL: &str = "throughput_interval";

/// Metric: trials that computed on the same hardware during the profile phase, at most.
pub const NEIGHBOURS: &str = "neighbours";

/// Shares of the throughput above this are taken for this.
const MOST: f64 = 0.9;

/// Name of the metric that says how uncertain a measured `metric` is: half the width of its interval, as a share.
pub fn interval_of(metric: &str) -> String {
    format!("{metric}_interval")
}

/// How many trials shared a measurement's hardware, at most; `None` where it was alone or that is not known.
pub fn neighbours(metrics: &Metrics) -> Option<f64> {
    metrics.value(NEIGHBOURS).filter(|beside| *beside > 0.0)
}

/// The share of its throughput that a measurement may have lost; `None` where it was quiet.
pub fn disturbed(metrics: &Metrics) -> Option<f64> {
    metrics.value(DISTURBED).filter(|share| *share > 0.0)
}

/// Marks a measurement as disturbed, with the width that this gives its throughput. The larger of two marks counts.
pub fn mark_disturbed(metrics: &mut Metrics, share: f64) {
    let share = share.max(disturbed(metrics).unwrap_or(0.0)).clamp(0.0, MOST);
    if share > 0.0 {
        let known = metrics.value(THROUGHPUT_INTERVAL).unwrap_or(0.0);
        metrics.insert(DISTURBED, share);
        metrics.insert(THROUGHPUT_INTERVAL, known.max(share / (1.0 - share)));
    }
}

/// The metrics with the throughput that a disturbed measurement may reach in peace.
#[must_use]
pub fn in_peace(mut metrics: Metrics) -> Metrics {
    if let (Some(share), Some(measured)) = (disturbed(&metrics), metrics.value(THROUGHPUT)) {
        metrics.insert(THROUGHPUT, measured / (1.0 - share.min(MOST)));
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_widens_the_interval_as_far_as_the_lost_throughput() {
        let mut metrics: Metrics = [(THROUGHPUT, 500.0), (THROUGHPUT_INTERVAL, 0.02)].into();
        assert_eq!(in_peace(metrics.clone()), metrics);
        mark_disturbed(&mut metrics, 0.5);
        assert_eq!(metrics.value(THROUGHPUT_INTERVAL), Some(1.0));
        mark_disturbed(&mut metrics, 0.2);
        assert_eq!(disturbed(&metrics), Some(0.5));
        assert_eq!(in_peace(metrics).value(THROUGHPUT), Some(1000.0));
    }

    #[test]
    fn the_throughput_s_interval_is_named_as_all_are() {
        assert_eq!(interval_of(THROUGHPUT), THROUGHPUT_INTERVAL);
    }

    #[test]
    fn nothing_lost_is_no_mark() {
        let mut metrics: Metrics = [(THROUGHPUT, 500.0)].into();
        mark_disturbed(&mut metrics, 0.0);
        assert_eq!(metrics, [(THROUGHPUT, 500.0)].into());
        mark_disturbed(&mut metrics, 7.0);
        assert!((metrics.value(THROUGHPUT_INTERVAL).unwrap() - 9.0).abs() < 1e-9);
    }
}
