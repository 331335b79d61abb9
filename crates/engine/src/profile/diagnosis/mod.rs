//! Diagnosis: what a profile says should be changed, with evidence and predicted gain.
//!
//! Each rule is a pure function of the measured profile. What it proposes can be run (`verify`), so that the predicted
//! gain stands beside the measured one.

mod arithmetic;
mod batching;
mod change;
mod evidence;
mod finding;
mod gpu;
#[cfg(test)]
mod gpu_tests;
mod machine;
mod memory;
mod model;
mod products;
mod schedule;
#[cfg(test)]
mod tests;
mod torch;
mod tuning;
mod verify;

pub use change::Change;
pub use evidence::{Cost, Evidence, FasterType, Oracle, RankLoss};
pub use finding::{Finding, Gain, Metric, PredictedBy, Rule, Verified};
pub use model::ModelOracle;
pub use tuning::{Altering, Outcome, Ratio, Tried, Tuning, TuningBench, is_promising, tune};
pub use verify::{Rerun, verify};

/// All rules: a rule finds at most one thing.
const RULES: [fn(&Evidence<'_>) -> Option<Finding>; 23] = [
    batching::data_bound,
    batching::short_rows,
    batching::small_micro_batch,
    gpu::launch_bound,
    gpu::host_bound,
    gpu::copies_not_overlapped,
    gpu::host_updates_wait,
    gpu::low_tensor_core_use,
    memory::recomputes_with_room_left,
    memory::room_for_a_larger_micro_batch,
    memory::optimizer_state,
    memory::needless_8bit,
    arithmetic::slow_op,
    arithmetic::dequantization_bound,
    arithmetic::rank_too_high,
    arithmetic::slow_number_type,
    schedule::evaluates_too_often,
    schedule::logs_too_often,
    torch::eager_attention,
    torch::slow_updates,
    machine::low_utilisation,
    machine::throttled,
    machine::noisy_neighbour,
];

/// Findings that are worth changing, the largest predicted gain first.
pub fn diagnose(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().filter_map(|rule| rule(evidence)).collect();
    let weight = |finding: &Finding| finding.gain.map_or(0.0, |gain| gain.relative(evidence.profile));
    findings.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    findings
}
