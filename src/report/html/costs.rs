//! What the time of a step and the peak memory of a trial consist of.

use super::input::{PageInput, PhaseTimes, TrialCurves};
use super::rounded::rounded;
use super::view::{MemoryView, PhaseView};
use peft_tune_core::objective::{MEASURED_STEPS, PEAK_MEMORY};
use peft_tune_core::study::Trial;

/// Parts of a step, by the metric that tells each.
const STEP_PARTS: [(&str, &str); 4] = [
    ("data", "data_s"),
    ("forward", "forward_s"),
    ("backward", "backward_s"),
    ("optimizer", "optimizer_s"),
];

/// Seconds of a step by part: what the measured steps took in the median, else the mean of the steps that were recorded.
pub(super) fn phases(trial: &Trial, trial_curves: &[TrialCurves]) -> Option<PhaseView> {
    let metrics = trial.state.metrics();
    let measured = |name: &str| metrics.and_then(|metrics| metrics.value(name));
    if let Some(step_s) = measured("step_s") {
        let parts = STEP_PARTS
            .iter()
            .map(|(part, name)| (*part, measured(name).unwrap_or(0.0)));
        return Some(phase_view(
            trial,
            "profile",
            measured(MEASURED_STEPS).unwrap_or(0.0) as u64,
            parts,
            step_s,
        ));
    }
    let one = trial_curves.iter().find(|one| one.number == trial.number.0)?;
    let longest = one
        .phases
        .iter()
        .max_by_key(|phase| phase.steps)
        .filter(|phase| phase.steps > 0)?;
    let PhaseTimes {
        phase,
        steps,
        data_s,
        forward_s,
        backward_s,
        optimizer_s,
        total_s,
    } = *longest;
    let mean = |seconds: f64| seconds / steps as f64;
    let parts = STEP_PARTS
        .iter()
        .map(|(part, _)| *part)
        .zip([data_s, forward_s, backward_s, optimizer_s].map(mean));
    Some(phase_view(trial, phase.name(), steps, parts, mean(total_s)))
}

fn phase_view(
    trial: &Trial,
    phase: &'static str,
    steps: u64,
    parts: impl Iterator<Item = (&'static str, f64)>,
    step_s: f64,
) -> PhaseView {
    let mut parts: Vec<(&'static str, f64)> = parts.map(|(name, seconds)| (name, rounded(seconds))).collect();
    let rest = step_s - parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
    if rest > 0.0 {
        parts.push(("other", rounded(rest)));
    }
    PhaseView {
        trial: trial.number.0,
        phase,
        steps,
        parts,
    }
}

/// The parts of a trial's peak memory: predicted ones, or what the base model took; and what is left of what was measured.
pub(super) fn memory(trial: &Trial, input: &PageInput) -> Option<MemoryView> {
    let metrics = trial.state.metrics()?;
    let peak = metrics.value(PEAK_MEMORY)?;
    let known = input.memory.iter().find(|parts| parts.number == trial.number.0);
    let base = metrics.value("base_memory_bytes").filter(|base| *base <= peak);
    let mut parts: Vec<(String, f64)> = match (known, base) {
        (Some(known), _) => known.parts.clone(),
        (None, Some(base)) => vec![("base model".to_owned(), base)],
        (None, None) => Vec::new(),
    };
    let rest = peak - parts.iter().map(|(_, bytes)| bytes).sum::<f64>();
    if !parts.is_empty() && rest > 0.0 {
        let name = if known.is_some() { "rest" } else { "training" };
        parts.push((name.to_owned(), rest));
    }
    Some(MemoryView {
        trial: trial.number.0,
        peak,
        parts,
    })
}
