//! `peft-tune search`: the main job.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::args::Args;
use super::opened_study::open;
use super::preparation::{Ready, prepare};
use super::progress::SearchProgress;
use super::resume_command::resume_command;
use super::search_result::SearchResult;
use super::spent_text::{lack_text, spent_text};
use super::trials::{TrialsOutcome, run_trials};
use super::{baseline_file, detach, dry_run, engine_choice, search_price, target_stack, trl, warm_start};
use crate::cli::CliError;
use crate::cli::data::learning_rate;
use crate::cli::study::costs::costs_of;
use crate::cli::study::scaling::scaling_of;
use crate::cli::study::track::Tracking;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::signals::Signals;
use crate::space::{Backend, Study, WarmStart};
use crate::tools::Tool;
use crate::tune::{Ending, Interrupt, Lack, TunerParts};
use peft_tune_search::{Knowledge, Prior, Problem, Sampler};

/// How long a second signal leaves to hand the trials under way back.
const IN_ORDER: Duration = Duration::from_secs(3);

/// Runs the search and prints what it found.
pub(in crate::cli) fn run(mut args: Args) -> Result<(), CliError> {
    let mut study = match args.study()? {
        Some(study) => study,
        None => engine_choice::chosen(&mut args)?,
    };
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
        let stack = args.stack.as_deref().map(Tool::from_name).transpose();
        study.baseline = baseline_file::read(path, stack.map_err(CliError::bad_input)?)?;
        baseline_file::settle_trainer(path, &mut study.baseline, study.base.as_ref())?;
        if study.backend == Backend::Native {
            baseline_file::leave_torch_out(&mut study.baseline);
        }
    }
    if let Some(time) = args.time {
        study.budget.time_s = Some(time.0);
    }
    args.track.apply(&mut study);
    if let (Backend::Native, Some(base)) = (&study.backend, &study.base)
        && let Err(error) = base.check_trained_here()
    {
        return Err(study.reject(&["space", "trainer"], error.to_string()).into());
    }
    if let Backend::Trl(backend) = &study.backend {
        trl::begin(&study, backend, &mut args.workers)?;
        let line = args.workers.stack.as_ref().map(trl::line);
        line.filter(|_| !args.json).into_iter().for_each(tell);
    }
    args.workers.check_devices(&study)?;
    search_price::settle(&mut study, &args.workers, args.price, args.budget)?;
    if let Some(warning) = learning_rate::warning(&study) {
        tell(format_args!("warning: {warning}"));
    }
    if args.dry_run {
        // Nothing is downloaded: a model that lies here is looked at.
        if study.base.as_ref().is_some_and(|base| Path::new(&base.model).is_dir()) {
            target_stack::of_study(&study)?;
        }
        let sampler = sampler_of(&study, &study.problem(), Knowledge::default())?;
        return dry_run::run(&args.database, &study, args.budget, sampler, &args.workers, args.json);
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
    found: SearchResult,
    /// What longer trainings lacked.
    lack: Option<Lack>,
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
    let ran = run_trials(args, &opened, parts, forecast, target).await;
    if let Some(tracking) = tracking {
        // What is not written yet is told when the store is closed.
        let _ = store.steps().flush().await;
        tokio::task::block_in_place(|| tracking.finish());
    }
    let TrialsOutcome {
        ending,
        spent,
        lack,
        problem,
    } = ran?;
    let (history, confirmed) = store.history().confirmed_trials(id).await?;
    let stored = store.studies().find(Some(&study.name)).await?;
    let found = SearchResult {
        costs: costs_of(&store, &stored, &history, None).await?,
        scaling: scaling_of(&store, id, &history).await?,
        problem,
        prior,
        confirmed,
        predicted: store.predictions().all(id).await?,
        variants: store.inheritance().variants(id).await?,
        baseline: store.baselines().of(id).await?,
        kernels: store.kernel_forms().of(id).await?,
        history,
        spent,
        held_out_rows,
    };
    drop(opened);
    store.close().await?;
    Ok(Searched { ending, found, lack })
}

fn sampler_of(study: &Study, problem: &Problem, knowledge: Knowledge) -> Result<Box<dyn Sampler>, CliError> {
    let built = peft_tune_search::build_with(&study.sampler, problem, study.seed, knowledge);
    Ok(built.map_err(|error| match error.option() {
        Some(option) => study.reject(&["sampler", "options", option], error.to_string()),
        None => study.reject(&["sampler"], error.to_string()),
    })?)
}
