//! `peft-tune search`: the main job.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::CliError;
use super::baseline_file;
use super::changed_inputs::{self, Content};
use super::database::DatabaseArgs;
use super::detach;
use super::dry_run;
use super::explain_text;
use super::forecast;
use super::held_out_error;
use super::interrupt::{self, First};
use super::learning_rate;
use super::logging::LogArgs;
use super::machine::machine;
use super::output::{tell, terminal_width, write_result};
use super::preflight::{self, Preflight};
use super::progress::SearchProgress;
use super::resume::resume_command;
use super::target;
use super::track::TrackArgs;
use super::warm_start;
use super::workers::WorkerArgs;
use crate::report::{Recommendation, Summary, SummaryInput};
use crate::space::{Backend, Seconds, Study, StudyFile, WarmStart};
use crate::store::{Confirmations, KernelsOfTrials, OpenStudy, Store, StudyId, StudyRecord, Variants};
use crate::tune::{Ending, Forecast, Inputs, TargetForecast, Tuner, TunerParts, baseline, reopen_failed_study};
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::{Params, Trial, TrialNumber, TrialState};
use peft_tune_engine::data::on_disk;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::sample::why_no_gpu_samples;
use peft_tune_kernels::{Kernels, device};
use peft_tune_search::{
    Knowledge, Preference, Prior, Problem, Sampler, importance, most_telling, pareto_front, recommend,
};

/// Rows of the front that the closing screen shows, beside the recommended one.
const FRONT_ROWS: usize = 15;

/// How long a second signal leaves to hand the trials under way back.
const IN_ORDER: Duration = Duration::from_secs(3);

/// Searches for the settings worth using: runs trials, stores them, prints the Pareto front and a recommendation.
///
/// Started again on the same file and database, it continues where it stopped; nothing that finished is run again.
/// Ctrl-C finishes the trial under way and stops; a second Ctrl-C stops at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Search-space file (YAML).
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Trials of the study in all, instead of the file's `budget: trials`. Unless the file says how many, the
    /// recommendation is then confirmed by at most as many repeats as there are complete trials.
    #[arg(long, value_name = "N")]
    trials: Option<u64>,
    /// Time that all trials of the study may take, such as `30m`, instead of the file's `budget: time`.
    #[arg(long, value_name = "TIME")]
    time: Option<Seconds>,
    /// Runs the file as a study of this name.
    #[arg(long = "as", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Where model or data hold something else than when the study began: measures its settings again, and keeps what was
    /// measured under another name.
    #[arg(long)]
    accept_changed_inputs: bool,
    /// Goes on where trial after trial fails alike, and takes that as their settings' fault.
    #[arg(long)]
    keep_going: bool,
    /// A config of yours to compare the recommended setting with (of TRL, axolotl, LLaMA-Factory, torchtune, unsloth, PEFT's
    /// adapter_config.json, or a recipe), instead of the file's `baseline`.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Starts from earlier studies of the database on the same model, data and machine, as the file's `warm_start: true` does.
    #[arg(long)]
    warm_start: bool,
    #[command(flatten)]
    track: TrackArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    /// Shows what would run, and runs nothing.
    #[arg(long, conflicts_with = "detach")]
    dry_run: bool,
    /// Runs in the background, in a session of its own, with a log file; see `attach`, `status` and `stop`.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the search and prints what it found.
pub(super) fn run(args: Args) -> Result<(), CliError> {
    let mut study = StudyFile::read(&args.file)?;
    if let Some(name) = &args.name {
        study.name.clone_from(name);
    }
    if let Some(trials) = args.trials {
        study.budget.trials = Some(trials);
    }
    if args.warm_start && study.warm_start == WarmStart::Off {
        study.warm_start = WarmStart::Alike;
    }
    if let Some(path) = &args.baseline {
        study.baseline = baseline_file::read(path)?;
    }
    if let Some(time) = args.time {
        study.budget.time_s = Some(time.0);
    }
    args.workers.check_kernels(&study)?;
    if let Some(warning) = learning_rate::warning(&study) {
        tell(format_args!("warning: {warning}"));
    }
    if args.dry_run {
        // Nothing is downloaded: a model that lies here is looked at.
        if study.base.as_ref().is_some_and(|base| Path::new(&base.model).is_dir()) {
            target::of_study(&study)?;
        }
        let sampler = sampler_of(&study, &study.problem(), Knowledge::default())?;
        return dry_run::run(&args.database, &study, sampler, (&args.workers, args.json));
    }
    if args.detach {
        let own_log = args.log.log_file.is_none();
        let path = args
            .log
            .log_file
            .clone()
            .unwrap_or_else(|| detach::log_path(&args.database, &study));
        return detach::detach(&args.database, &study, &path, own_log);
    }
    args.log.begin()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(CliError::failed)?;
    runtime.block_on(search(&args, &study))
}

/// What a search says when it is first asked to end, and does: `began` says whether trials run.
fn first_signal(began: &AtomicBool, command: &str) -> First {
    match began.load(Relaxed) {
        true => {
            First::GoesOn("finishing the trials under way; Ctrl-C again stops at once, and they are run again later")
        }
        false => First::Ends(format!(
            "stopped before the first trial of this search, and nothing is lost; `{command}` begins again"
        )),
    }
}

async fn search(args: &Args, study: &Study) -> Result<(), CliError> {
    let began = Arc::new(AtomicBool::new(false));
    let (shared, command) = (began.clone(), resume_command(&args.database));
    let signals = interrupt::listen(move || first_signal(&shared, &command), IN_ORDER).map_err(CliError::failed)?;
    let problem = study.problem();
    // Before anything is read: a mistake in the file is told at once.
    sampler_of(study, &problem, Knowledge::default())?;
    let target = target::of_study(study)?;
    let preflight = study
        .base
        .as_ref()
        .map(|base| preflight::check(study, base))
        .transpose()?;
    let held_out_rows = preflight.as_ref().and_then(|found| found.data_set.held_out_rows);
    let store = Store::open(&args.database.path()).await?;
    let forecast = forecast::of_search(study, &store, &args.workers.first_slot(study)?, target.clone()).await?;
    let prior = match (&forecast, &target) {
        (Some(forecast), _) => Some(forecast.clone() as Arc<dyn Prior>),
        (None, Some(target)) => Some(target.clone() as Arc<dyn Prior>),
        (None, None) => None,
    };
    warm_start::check(study, &store).await?;
    let opened = open(args, study, &store, preflight).await?;
    let id = opened.open.id;
    let earlier = warm_start::earlier_trials(study, &store, id, opened.kernels).await?;
    let knowledge = Knowledge {
        prior: prior.clone(),
        earlier,
    };
    let sampler = sampler_of(study, &problem, knowledge)?;
    let tracking = args.track.start(&args.database, &study.name)?;
    let is_quiet = args.json || !std::io::stderr().is_terminal();
    let mut progress = SearchProgress::new((&study.name, &args.database), is_quiet);
    let parts = TunerParts {
        study,
        store: &store,
        id,
        sampler,
        evaluator: args.workers.evaluator(study)?,
        observer: &mut progress,
        interrupt: signals.interrupt.clone(),
    };
    began.store(true, Relaxed);
    let ran = tune(args, &opened, parts, (forecast, target)).await;
    progress.finish();
    if let Some(tracking) = tracking {
        // What is not written yet is told when the store is closed.
        let _ = store.flush_steps().await;
        tokio::task::block_in_place(|| tracking.finish());
    }
    let (ending, spent_s) = ran?;
    let (history, confirmed) = store.confirmed_trials(id).await?;
    let found = Found {
        problem: &problem,
        prior,
        confirmed,
        predicted: store.all_predictions(id).await?,
        variants: store.variants(id).await?,
        baseline: store.baseline(id).await?,
        kernels: store.trial_kernels(id).await?,
        history,
        spent_s,
    };
    drop(opened);
    store.close().await?;
    if let Ending::Stopped { reason } = &ending {
        tell(format_args!("stopped before the budget was spent: {reason}"));
    }
    warn_of_few_rows(study, &found.history, held_out_rows);
    let explain = args.database.command(&["explain"], Some(&study.name));
    let succeeded = succeeded(&found.history, &explain);
    let printed = print_summary(args, study, found);
    match ending {
        // The terminal may be gone.
        Ending::Interrupted => Err(CliError::Interrupted {
            command: resume_command(&args.database),
            code: signals.exit_code(),
        }),
        Ending::TrialsDone | Ending::TimeSpent | Ending::Exhausted | Ending::Stopped { .. } => printed.and(succeeded),
    }
}

/// A study of the database that is about to be searched, with what was found about it on the way.
struct Opened {
    open: OpenStudy,
    /// Whether the files are those that earlier trials read.
    content: Content,
    baseline: Option<Params>,
    kernels: Kernels,
    /// The form that `kernels` took the place of.
    instead_of: Option<Kernels>,
}

async fn open(args: &Args, study: &Study, store: &Store, preflight: Option<Preflight>) -> Result<Opened, CliError> {
    let mut inputs = preflight.as_ref().map(|found| found.inputs.clone()).unwrap_or_default();
    if study.base.is_some() && !study.launcher.is_elsewhere() {
        inputs.push(changed_inputs::device_input(&args.workers.first_slot(study)?));
    }
    inputs.extend(study.target.into_iter().flat_map(target::inputs));
    let content = changed_inputs::check(study, store, (&inputs, args.accept_changed_inputs)).await?;
    let baseline = baseline(study, preflight.as_ref().map(|found| &found.architecture));
    let record = record_of(study, preflight);
    if content == Content::Same && store.move_study(&record).await? {
        tell("the study's files lie elsewhere now and hold the same: it continues");
    }
    let open = store.begin_study(&record).await?;
    store.record_inputs(open.id, &inputs).await?;
    let (kernels, instead_of) = kernels_of(args, store, open.id).await?;
    Ok(Opened {
        open,
        content,
        baseline,
        kernels,
        instead_of,
    })
}

/// Runs the trials; how the search ended, and the seconds that its trials took.
async fn tune(
    args: &Args,
    opened: &Opened,
    parts: TunerParts<'_>,
    (forecast, target): (Option<Arc<Forecast>>, Option<Arc<TargetForecast>>),
) -> Result<(Ending, f64), CliError> {
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
    // The baseline is the first trial anyway.
    if let Content::Changed(settings) = &opened.content {
        let others = settings.iter();
        for setting in others.filter(|setting| setting.params() != opened.baseline.as_ref()) {
            store.add_request(id, setting).await?;
        }
    }
    let mut tuner = tuner
        .with_kernels(opened.kernels)
        .instead_of(opened.instead_of)
        .with_rehearsal()
        .keeping_going(args.keep_going)
        .with_attempts(args.workers.attempts)
        .with_inputs(inputs_of(study))
        .with_baseline(opened.baseline.clone());
    if let Some(forecast) = forecast {
        tuner = tuner.with_forecast(forecast);
    }
    if let Some(target) = target {
        tuner = tuner.with_target(target);
    }
    let ending = tuner.run().await?;
    Ok((ending, tuner.progress().spent_s))
}

/// What a search found.
struct Found<'a> {
    problem: &'a Problem,
    prior: Option<Arc<dyn Prior>>,
    history: Vec<Trial>,
    confirmed: Confirmations,
    variants: Variants,
    predicted: Vec<(TrialNumber, String, f64)>,
    baseline: Option<TrialNumber>,
    kernels: KernelsOfTrials,
    spent_s: f64,
}

/// A search that brought nothing is none that succeeded.
///
/// # Errors
/// No trial is complete.
fn succeeded(history: &[Trial], explain: &str) -> Result<(), CliError> {
    let is_complete = |trial: &Trial| matches!(trial.state, TrialState::Complete { .. });
    if history.iter().any(is_complete) {
        return Ok(());
    }
    let message = match history.len() {
        0 => "no trial was run: the budget allows none".to_owned(),
        trials => format!("none of the {trials} trials succeeded; `{explain}` says why"),
    };
    Err(CliError::failed(anyhow::anyhow!(message)))
}

/// Says that the best loss is known less well than finalists differ.
fn warn_of_few_rows(study: &Study, history: &[Trial], held_out_rows: Option<u64>) {
    let limit = study.plan.train.as_ref().and_then(|train| train.evaluation_rows);
    let rows = held_out_rows.map(|rows| limit.map_or(rows, |limit| rows.min(limit as u64)));
    let complete = history.iter().filter_map(|trial| match &trial.state {
        TrialState::Complete { metrics } => Some((metrics, metrics.value(LOSS)?)),
        _ => None,
    });
    let best = complete.min_by(|one, other| one.1.total_cmp(&other.1));
    if let Some(warning) = best
        .zip(rows)
        .and_then(|((metrics, _), rows)| held_out_error::warning(metrics, rows))
    {
        tell(format_args!("warning: {warning}"));
    }
}

/// The form of the ops to run trials in: the one that was asked for, or where a kernel of that failed in this study before, the safer one
/// that took its place. With the form that failed.
async fn kernels_of(args: &Args, store: &Store, id: StudyId) -> Result<(Kernels, Option<Kernels>), CliError> {
    let asked = args.workers.kernels.form();
    let Some(known) = store.safer_kernels(id).await? else {
        return Ok((asked, None));
    };
    let failed = known.instead_of.as_deref().and_then(Kernels::from_name);
    match Kernels::from_name(&known.kernels) {
        Some(kernels) if failed == Some(asked) => {
            tell(format_args!(
                "a kernel of `--kernels {}` failed in this study: it goes on with `--kernels {}`",
                asked.flag(),
                kernels.flag()
            ));
            Ok((kernels, failed))
        }
        _ => Ok((asked, None)),
    }
}

/// Says that a study has trials whose costs do not compare with those to come.
async fn warn_of_other_kernels(store: &Store, id: StudyId, kernels: Kernels) -> Result<(), CliError> {
    let known = store.kernels(id).await?;
    let others = known.values().filter(|form| *form != kernels.name()).count();
    if others > 0 {
        tell(format_args!(
            "{others} trials of this study were measured with other kernels than `{}`: their throughput and memory do not compare \
             with those of trials to come; another study name keeps them apart",
            kernels.flag()
        ));
    }
    Ok(())
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

fn print_summary(args: &Args, study: &Study, found: Found<'_>) -> Result<(), CliError> {
    let (problem, history) = (found.problem, found.history.as_slice());
    let front: Vec<_> = pareto_front(problem, history)
        .iter()
        .map(|point| point.trial.number)
        .collect();
    let recommendation = recommend(problem, history, &Preference::default());
    let recommendation = match &recommendation {
        Ok(chosen) => Some(Recommendation {
            trial: chosen.trial.number,
            reason: chosen.reason.clone(),
        }),
        Err(error) => {
            tell(format_args!("no recommendation: {error}"));
            None
        }
    };
    let summary = Summary::new(SummaryInput {
        study: &study.name,
        objectives: &study.objectives,
        trials: history,
        front: &front,
        recommendation: recommendation.as_ref(),
        wall_s: found.spent_s,
    })
    .with_confirmed(found.confirmed)
    .with_variants(history, found.variants)
    .with_predicted(found.predicted)
    .with_kernels(found.kernels)
    .with_target(study.target)
    .with_baseline(found.baseline, history)
    .with_whole_front(args.database.command(&["pareto"], Some(&study.name)))
    .showing(
        most_telling(problem, history, FRONT_ROWS)
            .iter()
            .map(|trial| trial.number),
    );
    let text = match args.json {
        true => summary.to_json().map_err(CliError::failed)? + "\n",
        false => {
            let explain = args.database.command(&["explain"], Some(&study.name));
            let line = explain_text::importance_line(&importance(problem, history, found.prior));
            let line = line.map(|line| format!("  {line} (`{explain}` says how)\n"));
            summary.to_text(terminal_width()) + &line.unwrap_or_default()
        }
    };
    write_result(&text)
}

fn sampler_of(study: &Study, problem: &Problem, knowledge: Knowledge) -> Result<Box<dyn Sampler>, CliError> {
    let built = peft_tune_search::build_with(&study.sampler, problem, study.seed, knowledge);
    Ok(built.map_err(|error| match error.option() {
        Some(option) => study.reject(&["sampler", "options", option], error.to_string()),
        None => study.reject(&["sampler"], error.to_string()),
    })?)
}

/// The files that every trial reads.
fn inputs_of(study: &Study) -> Inputs {
    let Some(base) = &study.base else {
        return Inputs::default();
    };
    let model = ModelFiles::resolve_weights(&base.model, &mut ())
        .ok()
        .map(|files| files.folder);
    let data = on_disk(&base.data).unwrap_or_else(|_| base.data.clone());
    let files = data
        .train
        .iter()
        .chain(&data.chat_template)
        .chain(data.held_out.files());
    Inputs::of(model.into_iter().chain(files.cloned()))
}

/// The study as the database keeps it. What decides the meaning of a trial is its definition; the budget is not.
fn record_of(study: &Study, preflight: Option<Preflight>) -> StudyRecord {
    let base = study.base.as_ref();
    let (model, data_set) = preflight.map(|found| (found.model, found.data_set)).unzip();
    let backend = match &study.backend {
        Backend::Native => serde_json::Value::Null,
        Backend::Command(backend) => serde_json::json!({"command": backend.command, "folder": backend.folder}),
    };
    StudyRecord {
        name: study.name.clone(),
        space_path: study.source.path().to_owned(),
        space_text: study.source.text().to_owned(),
        definition: serde_json::json!({
            "base": base,
            "fixed": study.fixed,
            "space": study.space,
            "plan": study.plan,
            "memory_limit_bytes": study.memory_limit_bytes,
            "backend": backend,
        }),
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
        seed: study.seed,
        sampler: study.sampler.kind.name().to_owned(),
        model,
        data_set,
        machine: Some(machine()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::ReadOptions;

    #[tokio::test]
    async fn a_stored_study_has_the_problem_that_is_searched() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        let native = "model: m\ndata: {train: [a.jsonl]}\nspace: {rank: [4, 8]}\n";
        let command = "backend: {command: [run]}\nobjectives: [loss, throughput]\nspace: {x: [1, 2]}\n";
        for (name, text) in [("native", native), ("command", command)] {
            let path = folder.path().join(format!("{name}.yaml"));
            let study = StudyFile::parse(&path, text, ReadOptions { check_files: false }).unwrap();
            let open = store.begin_study(&record_of(&study, None)).await.unwrap();
            let stored = store.study(Some(name)).await.unwrap();
            let space = store.search_space(open.id).await.unwrap();
            assert_eq!(stored.problem(space), study.problem(), "{name}");
            let known_at_once = study.problem().objectives.iter().any(|one| one.known_after == Some(0));
            assert_eq!(known_at_once, name == "native");
        }
    }
}
