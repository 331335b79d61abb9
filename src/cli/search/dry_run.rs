//! `search --dry-run`: what a search would run, without running it.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use super::search_price::sum_text;
use super::worker_args::WorkerArgs;
use crate::cli::CliError;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::data::study_rows::StudyRows;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::study::track;
use crate::cli::terminal::output::write_result;
use crate::report::{duration, params_text, thread_count};
use crate::space::{Backend, Dollars, Study, WarmStart};
use crate::store::Store;
use crate::tune::baseline;
use crate::worker::{Placement, usable_cpus};
use peft_tune_core::space::Widening;
use peft_tune_core::study::{AccuracyPlan, Params, Trial, TrialNumber, TrialState};
use peft_tune_kernels::device::first_gpu;
use peft_tune_search::Sampler;

/// Settings that are shown.
const SHOWN: u64 = 10;

/// What the database has of the study already.
#[derive(Default)]
struct Found {
    trials: Vec<Trial>,
    /// Number of the trials that the budget does not count.
    variants: u64,
    spent_s: f64,
    process: Option<u32>,
    /// Ranges that were widened.
    widenings: Vec<Widening>,
}

/// Prints the trials that would come next, where they would run, and the `sum` that the budget is the time of. No trial runs,
/// nothing is measured, and the results database stays as it is; the rows are read and tokenised as a search would.
///
/// # Errors
/// Bad input, as a search would find it in the study's file, its database and its devices.
pub(super) fn run(
    database: &DatabaseArgs,
    study: &Study,
    sum: Option<Dollars>,
    mut sampler: Box<dyn Sampler>,
    workers: &WorkerArgs,
    as_json: bool,
) -> Result<(), CliError> {
    let found = found(database, study)?;
    // As the search would: data that it refuses are refused here.
    if let Some(base) = &study.base {
        StudyRows::of(base)?;
    }
    let slots = workers.slots(study)?;
    let (repeated, next) = next_settings(study, sampler.as_mut(), &found);
    let finished = found.trials.iter().filter(|trial| trial.state.is_finished()).count();
    let text = if as_json {
        let value = json!({
            "study": study.name,
            "database": database.path(),
            "run_by_process": found.process,
            "finished": finished,
            "spent_s": found.spent_s,
            "budget": {"trials": study.budget.trials, "time_s": study.budget.time_s, "usd": sum.map(|sum| sum.0)},
            "sampler": study.sampler.kind.name(),
            "phases": phases(study),
            "track": study.track.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "workers": slots.iter().map(|slot| slot_text(study, slot)).collect::<Vec<_>>(),
            "together": workers.together,
            "repeated": repeated,
            "next": next,
        });
        serde_json::to_string_pretty(&value).map_err(CliError::failed)? + "\n"
    } else {
        let runs_on = (slots.as_slice(), workers.together_text());
        to_text(study, sum, database, (&found, finished), runs_on, (&repeated, &next))
    };
    write_result(&text)
}

fn found(database: &DatabaseArgs, study: &Study) -> Result<Found, CliError> {
    if !database.path().exists() {
        return Ok(Found::default());
    }
    block_on(async {
        let store = Store::open_read_only(&database.path()).await?;
        let studies = store.studies().all().await?;
        let mut found = Found::default();
        if let Some(known) = studies.iter().find(|known| known.name == study.name) {
            found = Found {
                trials: store.history().trials(known.id).await?,
                variants: store.inheritance().variants(known.id).await?.len() as u64,
                spent_s: store.spent_times().of(known.id).await?.total_s(),
                process: store.studies().live_runner(known.id).map(|runner| runner.process),
                widenings: store.widenings().of(known.id).await?,
            };
        }
        store.close().await?;
        Ok(found)
    })
}

/// The trials that were started and not finished, and what the sampler proposes after them if nothing that runs ends.
fn next_settings(study: &Study, sampler: &mut dyn Sampler, found: &Found) -> (Vec<u64>, Vec<Params>) {
    let mut problem = study.problem();
    problem.space.widen(&found.widenings);
    let mut history = found.trials.clone();
    let unfinished = history.iter().filter(|trial| !trial.state.is_finished());
    let repeated: Vec<u64> = unfinished.map(|trial| trial.number.0).collect();
    let left = study.budget.trials.map_or(SHOWN, |budget| {
        budget.saturating_sub(history.len() as u64 - found.variants)
    });
    let is_over = study.budget.time_s.is_some_and(|budget| found.spent_s >= budget);
    let mut next = Vec::new();
    while !is_over && (next.len() as u64) < left.min(SHOWN) {
        let first = history.is_empty().then(|| first_setting(study)).flatten();
        let Some(params) = first.or_else(|| sampler.ask(&problem, &history)) else {
            break;
        };
        history.push(Trial {
            number: TrialNumber(history.last().map_or(0, |trial| trial.number.0 + 1)),
            params: params.clone(),
            state: TrialState::Running,
        });
        next.push(params);
    }
    (repeated, next)
}

/// The baseline. A model that is not on this machine says nothing of its learning rate.
fn first_setting(study: &Study) -> Option<Params> {
    let model = study.base.as_ref().map(|base| Path::new(&base.model));
    let family = model.and_then(|folder| ModelFamily::read(&folder.join("config.json")).ok());
    baseline(study, family.and_then(|family| family.width()))
}

/// What a whole trial runs.
pub(super) fn phases(study: &Study) -> String {
    match &study.backend {
        Backend::Command(command) => format!("the command {}", command.command.join(" ")),
        Backend::Native | Backend::Trl(_) => {
            let measure = study.plan.measure.as_ref();
            let train = study.plan.train.as_ref();
            let parts = [
                measure.map(|plan| match plan.steps {
                    1 => "a profile phase of a step".to_owned(),
                    steps => format!("a profile phase of {steps} steps"),
                }),
                measure
                    .and_then(|plan| plan.serve)
                    .map(|_| "answers that are timed".to_owned()),
                train.map(|plan| match plan.evaluations {
                    0 | 1 => "a training phase with an evaluation".to_owned(),
                    evaluations => format!("a training phase with {evaluations} evaluations"),
                }),
            ];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            let behind = train.map(|plan| behind_training(&plan.accuracy)).unwrap_or_default();
            let place = match &study.backend {
                Backend::Trl(backend) => format!(", in {}", backend.loader.title()),
                _ => String::new(),
            };
            match behind.is_empty() {
                true => format!("{}{place}", parts.join(" and ")),
                false => format!("{}{place}, then {}", parts.join(" and "), behind.join(" and ")),
            }
        }
    }
}

/// What a trial does behind its training.
fn behind_training(plan: &AccuracyPlan) -> Vec<String> {
    let check = plan.check.then(|| "a comparison with fp32 base weights".to_owned());
    let training = plan.fp32_training.then(|| "the same training in fp32".to_owned());
    let score = plan.score.as_ref().map(|score| {
        let by = score
            .command
            .as_ref()
            .map(|command| format!(", scored by {}", command.command.join(" ")));
        let (rows, tokens) = (score.rows, score.max_new_tokens);
        format!(
            "answers to {rows} held-out rows of at most {tokens} tokens each{}",
            by.unwrap_or_default()
        )
    });
    let retained = plan
        .retained_loss
        .then(|| "the loss on the rows of `data.retain`".to_owned());
    let before = plan
        .base_kl
        .then(|| "a comparison with the model before the training".to_owned());
    let parts = [check, training, retained, before, score];
    parts.into_iter().flatten().collect()
}

pub(super) fn slot_text(study: &Study, slot: &Placement) -> String {
    let device = device_text(study, slot.device.as_deref());
    let threads = match slot.threads {
        Some(threads) => thread_count(threads),
        None if study.launcher.is_elsewhere() => "all of its threads".to_owned(),
        None => format!("all {} threads", usable_cpus().len().max(1)),
    };
    let cpus: Vec<String> = slot.cpus.iter().map(usize::to_string).collect();
    let pinned = if cpus.is_empty() {
        String::new()
    } else {
        format!(" on processors {}", cpus.join(","))
    };
    format!("worker {}: {device}, {threads}{pinned}", slot.number)
}

/// What a worker computes on.
fn device_text(study: &Study, device: Option<&str>) -> String {
    match device {
        Some("cpu") => "the CPU".to_owned(),
        Some(device) => device.to_owned(),
        None if study.launcher.is_elsewhere() => "a GPU where its machine has one, else the CPU".to_owned(),
        None => match (&study.backend, first_gpu()) {
            (Backend::Command(_), _) => "what the command takes".to_owned(),
            (Backend::Trl(_), _) => "the first GPU that PyTorch has, else the CPU".to_owned(),
            (Backend::Native, Some(gpu)) => gpu.name,
            (Backend::Native, None) => "the CPU (no GPU was found)".to_owned(),
        },
    }
}

/// `12 trials finished, of which the budget does not count 2 variants`.
fn finished_text(finished: usize, variants: u64) -> String {
    let text = match finished {
        1 => "1 trial finished".to_owned(),
        finished => format!("{finished} trials finished"),
    };
    match variants {
        0 => text,
        1 => format!("{text}, of which the budget does not count one variant"),
        variants => format!("{text}, of which the budget does not count {variants} variants"),
    }
}

fn to_text(
    study: &Study,
    sum: Option<Dollars>,
    database: &DatabaseArgs,
    (found, finished): (&Found, usize),
    (slots, together): (&[Placement], Option<String>),
    (repeated, next): (&[u64], &[Params]),
) -> String {
    let mut text = format!("study {} would run, and nothing was run\n", study.name);
    let mut add = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<10} {value}");
    };
    add(
        "database",
        format!(
            "{} ({})",
            database.path().display(),
            finished_text(finished, found.variants)
        ),
    );
    if let Some(process) = found.process {
        add(
            "but",
            format!("process {process} runs it now, so a search would be refused"),
        );
    }
    let trials = study.budget.trials.map(|trials| format!("{trials} trials in all"));
    let sum = sum_text(sum);
    let time = study.budget.time_s.map(|time| {
        format!(
            "{sum}{} in all, of which {} are spent",
            duration(time),
            duration(found.spent_s)
        )
    });
    add("budget", trials.into_iter().chain(time).collect::<Vec<_>>().join(", "));
    add("sampler", format!("{}, seed {}", study.sampler.kind.name(), study.seed));
    add("a trial", phases(study));
    for slot in slots {
        add("", slot_text(study, slot));
    }
    if let Some(together) = together {
        add("", together);
    }
    if let Some(places) = track::places(study) {
        add("tracked", places);
    }
    if !repeated.is_empty() {
        let numbers: Vec<String> = repeated.iter().map(u64::to_string).collect();
        add(
            "again",
            format!("trials {}, which were started and not finished", numbers.join(", ")),
        );
    }
    for (index, params) in next.iter().enumerate() {
        add(if index == 0 { "next" } else { "" }, params_text(params));
    }
    if !next.is_empty() && (study.base.is_some() || study.warm_start != WarmStart::Off) {
        let unsaid = "the search also knows predictions for this machine and its warm start, and may choose others";
        add("but", unsaid.to_owned());
    }
    if next.is_empty() {
        add(
            "next",
            "nothing: the budget is spent, or every setting was tried".to_owned(),
        );
    }
    text
}
