//! The trials of a search: the search loop with all that the command line gives it.

use std::sync::Arc;

use super::announcement;
use super::args::Args;
use super::changed_inputs::Content;
use super::kernels::warn_of_other_kernels;
use super::opened_study::Opened;
use super::study_record::inputs_of;
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::space::{Backend, Study};
use crate::store::SpentTime;
use crate::tune::{Ending, Forecast, Lack, TargetForecast, Tuner, TunerParts, reopen_failed_study};
use peft_tune_engine::profile::sample::why_no_gpu_samples;
use peft_tune_kernels::device;
use peft_tune_search::Problem;

/// Outcome of the trials of a search.
pub(super) struct TrialsOutcome {
    pub(super) ending: Ending,
    pub(super) spent: SpentTime,
    pub(super) lack: Option<Lack>,
    /// The problem that was searched, with the ranges that were widened.
    pub(super) problem: Problem,
}

/// Runs the trials and confirms the recommendation.
///
/// # Errors
/// Those of the search loop.
pub(super) async fn run_trials(
    args: &Args,
    opened: &Opened,
    parts: TunerParts<'_>,
    forecast: Option<Arc<Forecast>>,
    target: Option<Arc<TargetForecast>>,
) -> Result<TrialsOutcome, CliError> {
    let (study, store, id) = (parts.study, parts.store, parts.id);
    tracing::info!(
        study = study.name,
        resumed = opened.open.resumed,
        process = std::process::id(),
        "the search starts"
    );
    warn_of_other_kernels(store, id, opened.kernels).await?;
    warn_of_missing_samples(study, args)?;
    if !args.keep_going
        && let Some((trials, message)) = reopen_failed_study(store, id).await?
    {
        tell(format_args!(
            "all {trials} trials of this study failed alike ({message}): they are run again"
        ));
    }
    let tuner = Tuner::new(parts).await?;
    if !args.json
        && let Some(text) = announcement::progress_text(&tuner.progress())
    {
        tell(text);
    }
    // The baseline is the first trial anyway.
    if let Content::Changed { settings, .. } = &opened.content {
        let others = settings.iter();
        for setting in others.filter(|setting| setting.params() != opened.baseline.as_ref()) {
            store.requests().add(id, setting).await?;
        }
    }
    let mut tuner = tuner
        .with_kernels(opened.kernels)
        .instead_of(opened.instead_of)
        .with_rehearsal()
        .keeping_going(args.keep_going)
        .with_attempts(args.workers.attempts)
        .waiting_for_quiet(args.wait_quiet.map(|wait| wait.0))
        .with_inputs(inputs_of(study))
        .with_baseline(opened.baseline.clone());
    if let Some(forecast) = forecast {
        tuner = tuner.with_forecast(forecast);
    }
    if let Some(target) = target {
        tuner = tuner.with_target(target);
    }
    let ending = tuner.run().await?;
    Ok(TrialsOutcome {
        ending,
        spent: tuner.spent(),
        lack: tuner.lack(),
        problem: tuner.problem().clone(),
    })
}

/// Says once what each trial on a GPU would lack.
fn warn_of_missing_samples(study: &Study, args: &Args) -> Result<(), CliError> {
    // Another machine has a driver of its own, and other programs measure what they please.
    if study.launcher.is_elsewhere() || study.backend != Backend::Native {
        return Ok(());
    }
    let on_cpu = args.workers.first_slot(study)?.device.as_deref() == Some("cpu");
    if on_cpu || device::first_gpu().is_none() {
        return Ok(());
    }
    if let Some(reason) = why_no_gpu_samples() {
        tell(format_args!(
            "warning: trials will not tell of the GPU's utilisation, power, temperature, clock and energy: {reason}"
        ));
    }
    Ok(())
}
