//! `peft-tune search`: the main job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::announcement;
use super::baseline_file;
use super::changed_inputs;
use super::changed_inputs::Content;
use super::detach;
use super::dry_run;
use super::kernels::{kernels_of, warn_of_other_kernels};
use super::preflight;
use super::preflight::Preflight;
use super::progress::SearchProgress;
use super::resume_command::resume_command;
use super::search_result::Found;
use super::spent_text::{lack_text, spent_text};
use super::study_record::{inputs_of, record_of};
use super::target_stack;
use super::warm_start;
use super::worker_args::WorkerArgs;
use crate::cli::CliError;
use crate::cli::data::prepare::file_bytes;
use crate::cli::forecast::Grounds;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::plan::learning_rate;
use crate::cli::study::track::{TrackArgs, Tracking};
use crate::cli::terminal::logging::LogArgs;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::{QUICK_BYTES, reading_text};
use crate::cli::terminal::signals::Signals;
use crate::space::{Backend, Seconds, Study, StudyFile, WarmStart};
use crate::store::{OpenStudy, SpentTime, Store};
use crate::tune::{
    Ending, Forecast, Interrupt, LackOfTime, TargetForecast, Tuner, TunerParts, baseline, reopen_failed_study,
};
use peft_tune_core::study::Params;
use peft_tune_engine::profile::sample::why_no_gpu_samples;
use peft_tune_kernels::{Kernels, device};
use peft_tune_search::{Knowledge, Prior, Problem, Sampler};

/// How long a second signal leaves to hand the trials under way back.
const IN_ORDER: Duration = Duration::from_secs(3);

/// Search for the settings worth using: run trials, store them, print the Pareto front and a recommendation.
///
/// Started again on the same file and database, it continues where it stopped; nothing that finished is run again.
/// Ctrl-C finishes the trial under way and stops; a second Ctrl-C stops at once.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Search-space file (YAML).
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Trials of the study in all, those of earlier searches included, instead of the file's `budget: trials`. Variants, which
    /// take the loss of a training over and measure a cost alone, come on top. Unless the file says how many, the
    /// recommendation is then confirmed by at most as many repeats as there are complete trials.
    #[arg(long, value_name = "N")]
    trials: Option<u64>,
    /// Time that the study may take in all, confirmation included, such as `30m`, instead of the file's `budget: time`.
    #[arg(long, value_name = "TIME")]
    time: Option<Seconds>,
    /// Most time that the search waits at its end for other programs to leave the processors alone, to measure again what they
    /// disturbed [default: 30s, or a tenth of the budget's time].
    #[arg(long, value_name = "TIME", env = "PEFT_TUNE_WAIT_QUIET", hide_env = true)]
    wait_quiet: Option<Seconds>,
    /// Run the file as a study of this name.
    #[arg(long = "as", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Where model or data hold something else than when the study began: measure its settings again, and keep what was
    /// measured under another name.
    #[arg(long)]
    accept_changed_inputs: bool,
    /// Go on where trial after trial fails alike, and take that as their settings' fault.
    #[arg(long)]
    keep_going: bool,
    /// A config of yours to compare the recommended setting with (of TRL, axolotl, LLaMA-Factory, torchtune, unsloth, PEFT's
    /// adapter_config.json, or a recipe), instead of the file's `baseline`.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Start from earlier studies of the database on the same model, data and machine, as the file's `warm_start: true` does.
    #[arg(long)]
    warm_start: bool,
    #[command(flatten)]
    track: TrackArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    /// Show what would run, and run nothing.
    #[arg(long, conflicts_with = "detach")]
    dry_run: bool,
    /// Run in the background, in a session of its own, with a log file; see `attach`, `status` and `stop`.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the search and prints what it found.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
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
    args.track.apply(&mut study);
    args.workers.check_devices(&study)?;
    if let Some(warning) = learning_rate::warning(&study) {
        tell(format_args!("warning: {warning}"));
    }
    if args.dry_run {
        // Nothing is downloaded: a model that lies here is looked at.
        if study.base.as_ref().is_some_and(|base| Path::new(&base.model).is_dir()) {
            target_stack::of_study(&study)?;
        }
        let sampler = sampler_of(&study, &study.problem(), Knowledge::default())?;
        return dry_run::run(&args.database, &study, sampler, &args.workers, args.json);
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

async fn search(args: &Args, study: &Study) -> Result<(), CliError> {
    // Before anything is read: a mistake in the file is told at once.
    sampler_of(study, &study.problem(), Knowledge::default())?;
    let signals = Signals::default();
    let mut progress = SearchProgress::new(study, &args.database, signals.interrupt.clone(), args.json);
    progress.prepares(Some("getting ready"));
    signals
        .listen(progress.reaction(), IN_ORDER)
        .map_err(CliError::failed)?;
    let searched = run_study(args, study, &mut progress, &signals.interrupt).await;
    progress.finish();
    let Searched { ending, found, lack } = searched?;
    if let Ending::Stopped { reason } = &ending {
        tell(format_args!("stopped before the budget was spent: {reason}"));
    }
    if !args.json {
        let lack = lack.as_ref().map(lack_text);
        lack.into_iter().for_each(tell);
        spent_text(&found.spent, study.budget.time_s).into_iter().for_each(tell);
    }
    found.warn_of_few_rows(study);
    let explain = args.database.command(&["explain"], Some(&study.name));
    let succeeded = found.succeeded(&explain);
    let printed = found.print(&args.database, study, args.json);
    let was_cut = ending != Ending::Interrupted && signals.interrupt.is_requested();
    if was_cut {
        tell("the trials are done, and their confirmation was cut short");
    }
    match ending {
        // The terminal may be gone.
        ending if was_cut || ending == Ending::Interrupted => Err(CliError::Interrupted {
            command: resume_command(&args.database),
            code: signals.exit_code(),
        }),
        _ => printed.and(succeeded),
    }
}

/// A search that is over.
struct Searched {
    ending: Ending,
    found: Found,
    /// What there was no time for.
    lack: Option<LackOfTime>,
}

/// Prepares a study, runs its trials, and reads what they found.
async fn run_study(
    args: &Args,
    study: &Study,
    progress: &mut SearchProgress,
    interrupt: &Interrupt,
) -> Result<Searched, CliError> {
    let Ready {
        store,
        preflight,
        forecast,
        target,
    } = prepare(args, study, progress).await?;
    let held_out_rows = preflight.as_ref().and_then(|found| found.data_set.held_out_rows);
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
    let sampler = sampler_of(study, &study.problem(), knowledge)?;
    let tracking = Tracking::start(&args.database, study)?;
    let parts = TunerParts {
        study,
        store: &store,
        id,
        sampler,
        evaluator: args.workers.evaluator(study, forecast.as_ref())?,
        observer: progress,
        interrupt: interrupt.clone(),
    };
    let ran = tune(args, &opened, parts, forecast, target).await;
    if let Some(tracking) = tracking {
        // What is not written yet is told when the store is closed.
        let _ = store.flush_steps().await;
        tokio::task::block_in_place(|| tracking.finish());
    }
    let Ran {
        ending,
        spent,
        lack,
        problem,
    } = ran?;
    let (history, confirmed) = store.confirmed_trials(id).await?;
    let found = Found {
        problem,
        prior,
        confirmed,
        predicted: store.all_predictions(id).await?,
        variants: store.variants(id).await?,
        baseline: store.baseline(id).await?,
        kernels: store.trial_kernels(id).await?,
        history,
        spent,
        held_out_rows,
    };
    drop(opened);
    store.close().await?;
    Ok(Searched { ending, found, lack })
}

/// What a search needs before it opens its study.
struct Ready {
    store: Store,
    preflight: Option<Preflight>,
    forecast: Option<Arc<Forecast>>,
    target: Option<Arc<TargetForecast>>,
}

/// Reads the model and the data and predicts the study, and says on the way what is known by then. Where the data take long to read,
/// what fits and how long trials take is said before.
async fn prepare(args: &Args, study: &Study, progress: &SearchProgress) -> Result<Ready, CliError> {
    let say = |text: Option<String>| text.filter(|_| !args.json).into_iter().for_each(tell);
    let target = target_stack::of_study(study)?;
    let slots = args.workers.slots(study)?;
    let runs_on = (slots.as_slice(), args.workers.together_text());
    say(Some(announcement::plan_text(study, &args.database, runs_on)));
    let mut grounds = None;
    let mut store = None;
    let data_bytes = study.base.as_ref().map_or(0, |base| file_bytes(&base.data));
    let takes_long = data_bytes > QUICK_BYTES;
    if takes_long {
        let opened = Store::open(&args.database.path()).await?;
        grounds = Grounds::of_search(study, &opened, &slots[0]).await?;
        let forecast = grounds.as_ref().map(Grounds::with_full_rows);
        say(forecast.and_then(|forecast| announcement::prediction_text(study, &forecast)));
        store = Some(opened);
    }
    let reading = reading_text(data_bytes);
    progress.prepares(Some(if takes_long { &reading } else { "reading model and data" }));
    say(Some(reading).filter(|_| takes_long));
    let preflight = study
        .base
        .as_ref()
        .map(|base| preflight::check(study, base, progress.reading()))
        .transpose()?;
    progress.prepares(Some("predicting what settings cost"));
    let store = match store {
        Some(store) => store,
        None => Store::open(&args.database.path()).await?,
    };
    if !takes_long {
        grounds = Grounds::of_search(study, &store, &slots[0]).await?;
    }
    let forecast = grounds.map(|grounds| grounds.forecast(target.clone())).transpose()?;
    if !takes_long {
        say(forecast
            .as_deref()
            .and_then(|forecast| announcement::prediction_text(study, forecast)));
    }
    progress.prepares(None);
    Ok(Ready {
        store,
        preflight,
        forecast,
        target,
    })
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
    inputs.extend(study.target.into_iter().flat_map(target_stack::inputs));
    let content = changed_inputs::check(study, store, &inputs, args.accept_changed_inputs).await?;
    let baseline = baseline(study, preflight.as_ref().map(|found| &found.architecture));
    let record = record_of(study, preflight);
    if content == Content::Same && store.move_study(&record).await? {
        tell("the study's files lie elsewhere now and hold the same: it continues");
    }
    let open = store.begin_study(&record).await?;
    store.record_inputs(open.id, &inputs).await?;
    if let Content::Changed { widened, .. } = &content {
        for widening in widened {
            store.record_widening(open.id, widening).await?;
        }
    }
    let (kernels, instead_of) = kernels_of(args.workers.kernels.form(), store, open.id).await?;
    Ok(Opened {
        open,
        content,
        baseline,
        kernels,
        instead_of,
    })
}

/// What the trials of a search came to.
struct Ran {
    ending: Ending,
    spent: SpentTime,
    lack: Option<LackOfTime>,
    /// What was searched, with the ranges that were widened.
    problem: Problem,
}

/// Runs the trials and confirms the recommendation.
async fn tune(
    args: &Args,
    opened: &Opened,
    parts: TunerParts<'_>,
    forecast: Option<Arc<Forecast>>,
    target: Option<Arc<TargetForecast>>,
) -> Result<Ran, CliError> {
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
            store.add_request(id, setting).await?;
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
    Ok(Ran {
        ending,
        spent: tuner.spent(),
        lack: tuner.lack_of_time(),
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

fn sampler_of(study: &Study, problem: &Problem, knowledge: Knowledge) -> Result<Box<dyn Sampler>, CliError> {
    let built = peft_tune_search::build_with(&study.sampler, problem, study.seed, knowledge);
    Ok(built.map_err(|error| match error.option() {
        Some(option) => study.reject(&["sampler", "options", option], error.to_string()),
        None => study.reject(&["sampler"], error.to_string()),
    })?)
}
