//! Causes of a gap between what was expected of a run and what was measured: each a rule on the measurements.

mod cause;
mod machine;
mod memory;
mod messages;
mod others;
mod steps;
mod waits;

pub(super) use cause::Cause;

use super::evidence::Evidence;

/// All rules: a rule finds at most one thing.
const RULES: [fn(&Evidence) -> Option<Cause>; 18] = [
    messages::out_of_memory,
    memory::memory_limit,
    memory::swapping,
    waits::waits,
    others::other_programs,
    machine::cpu_limit,
    machine::throttled,
    steps::one_long_row,
    steps::periodic_work,
    steps::stall,
    steps::slows_down,
    steps::evaluation_time,
    steps::saving,
    memory::grows,
    memory::grows_with_lengths,
    memory::evaluation_peak,
    messages::other_setting,
    messages::fallback,
];

/// Causes that the measurements show, those of what takes the most time first.
pub(super) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let mut found: Vec<Cause> = RULES.iter().filter_map(|rule| rule(evidence)).collect();
    found.sort_by(|a, b| b.share.unwrap_or(0.0).total_cmp(&a.share.unwrap_or(0.0)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::evidence::made::clean;

    #[test]
    fn a_clean_run_has_no_cause() {
        for steps in [0, 1, 2, 10, 200] {
            let evidence = clean(steps);
            assert_eq!(causes(&evidence), [], "{steps}");
        }
        assert_eq!(causes(&Evidence::default()), []);
    }
}
