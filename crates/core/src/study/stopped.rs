//! Names of the metrics that a trial leaves which was stopped on its way: how long it would have been, and what is known of the end
//! that it did not reach.

/// Metric of a stopped trial: the steps of training that it would have had.
pub const PLANNED_STEPS: &str = "planned_steps";

/// Name of the metric that a stopped trial's `metric` could not have fallen below (or risen above, if it is maximised).
pub fn bound_of(metric: &str) -> String {
    format!("{metric}_at_least")
}

/// Name of the metric that says where a stopped trial's `metric` would have ended.
pub fn expected_end_of(metric: &str) -> String {
    format!("{metric}_expected")
}

/// Name of the metric that says how uncertain the end of a stopped trial's `metric` is: its standard deviation.
pub fn expected_end_deviation_of(metric: &str) -> String {
    format!("{metric}_expected_deviation")
}
