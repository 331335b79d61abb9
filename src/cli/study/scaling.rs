//! Speed of a stored study's trials on several devices against trials on one.

use crate::report::html::Finding;
use crate::report::{MeasuredScaling, ScalingInput, measured_scaling};
use crate::store::{DEVICE, Store, StoreError, StudyId};
use peft_tune_core::study::Trial;

/// Trials of a study on several devices, each beside one on one device.
///
/// # Errors
/// A database that cannot be read.
pub(in crate::cli) async fn scaling_of(
    store: &Store,
    study: StudyId,
    trials: &[Trial],
) -> Result<Vec<MeasuredScaling>, StoreError> {
    let recipes = store.history().recipes(study).await?;
    let several =
        |recipe: &serde_json::Value| recipe.pointer("/batch/devices").and_then(serde_json::Value::as_u64) > Some(1);
    if !recipes.values().any(several) {
        return Ok(Vec::new());
    }
    let predicted = store.predictions().all(study).await?;
    let inputs = store.inputs().of(study).await?;
    Ok(measured_scaling(&ScalingInput {
        trials,
        recipes: &recipes,
        predicted: &predicted,
        is_on_cpu: inputs.iter().any(|input| input.role == DEVICE && input.path == "cpu"),
    }))
}

/// Findings that devices wait for their link, or for each other, as a page has findings of profiles.
pub(super) fn link_findings(scaling: &[MeasuredScaling]) -> impl Iterator<Item = Finding> {
    scaling.iter().filter_map(|one| {
        let gain = one.link_bound_gain()?;
        Some(Finding {
            trial: one.trial.0,
            rule: "link bound".to_owned(),
            evidence: one.to_string(),
            change: match one.divides_processor {
                true => "fewer processes, as they divide one processor",
                false => "larger micro-batches, or more of them in a step",
            }
            .to_owned(),
            metric: "throughput".to_owned(),
            predicted_gain: Some(gain),
            measured_gain: None,
        })
    })
}
