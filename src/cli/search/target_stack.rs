//! The stack that a study is for, on the way from its file to the search.

use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::data::model_config::config_of;
use crate::cli::terminal::output::tell;
use crate::space::{Study, Target};
use crate::store::{InputRecord, TARGET_DEVICE, TARGET_STACK};
use crate::tune::TargetForecast;
use peft_tune_core::objective::THROUGHPUT;

/// The forecast for the stack that `study` is for; `None` where it is for no other. Needs no weights.
///
/// # Errors
/// A model without a readable config, or a value that the stack cannot run.
pub(super) fn of_study(study: &Study) -> Result<Option<Arc<TargetForecast>>, CliError> {
    let (Some(target), Some(base)) = (study.target, &study.base) else {
        return Ok(None);
    };
    let shape = config_of(&base.model)?.shape().map_err(CliError::bad_input)?;
    if let Some(line) = target.learns_otherwise(&base.data) {
        tell(format_args!("{line}"));
    }
    let counts = |metric: &str| study.objectives.iter().any(|one| one.metric == metric);
    if target.device.is_none() && counts(THROUGHPUT) {
        tell(format_args!(
            "warning: without `target_device` no speed of {} is known: throughput is the one measured here",
            target.stack.name()
        ));
    }
    Ok(TargetForecast::new(study, shape)?.map(Arc::new))
}

/// Stack and device that a study is for, among its inputs: predictions of different ones do not compare.
pub(super) fn inputs(target: Target) -> impl Iterator<Item = InputRecord> {
    let device = target.device.map(|device| device.sheet.name);
    let named = [(TARGET_STACK, Some(target.stack.name())), (TARGET_DEVICE, device)];
    named.into_iter().filter_map(|(role, name)| {
        let name = name?.to_owned();
        Some(InputRecord {
            role: role.to_owned(),
            path: name.clone(),
            fingerprint: name,
        })
    })
}
