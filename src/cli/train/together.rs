//! `peft-tune train` with several recipe files: trainings that share one base model and the passes over it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::args::Args;
use super::opening::{Interrupted, announce, data_of, opening_error};
use super::outcome_text::{end_line, summary};
use super::output_folder::{event_file, usual_output, write_recipe};
use super::watch::{Display, LogEvery, TrainWatch};
use crate::cli::CliError;
use crate::cli::data::epochs;
use crate::cli::machine::record::usable_memory_bytes;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::cli::terminal::signals::{Signals, listen};
use crate::cli::terminal::this_command::this_command;
use crate::report::duration;
use crate::space::RecipeFile;
use peft_tune_core::predict::{Host, Machine, Predictor, RowLengths, Setting, Workload};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::ceilings;
use peft_tune_engine::run::{Ended, Ending, Opened, Outcome, RunGroup, RunInputs, RunSettings, TrainingRun};
use peft_tune_engine::{BaseModel, Together, load_base};
use peft_tune_kernels::device;

/// A training that was asked for.
struct Asked {
    file: PathBuf,
    /// Name of the file without the ending, which lines and the folder have.
    name: String,
    recipe: Recipe,
    settings: RunSettings,
}

/// What became of a training.
#[derive(Default)]
struct Ran {
    /// How it ended; `None` of one that has not, or was not begun.
    outcome: Option<Outcome>,
    /// Tokens that it was trained on before this process opened it.
    earlier_tokens: u64,
}

/// Base model and data that all trainings share.
struct Shared {
    base: Arc<BaseModel>,
    model_folder: PathBuf,
    data: PreparedData,
    room: Room,
}

/// Room in the memory, for so many trainings.
struct Room {
    predictor: Predictor,
    workload: Workload,
    /// Bytes of memory that trainings may take; absent where the system does not say.
    memory_bytes: Option<u64>,
}

/// Trains all recipes, as many at a time as the memory holds, and prints how it went.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let asked = asked(args)?;
    let has_begun = Arc::new(AtomicBool::new(false));
    let signals = listen(Interrupted(Arc::clone(&has_begun)), Duration::ZERO).map_err(CliError::failed)?;
    let shared = load(args, &asked)?;
    has_begun.store(true, Relaxed);
    let started = Instant::now();
    let mut ran: Vec<Ran> = asked.iter().map(|_| Ran::default()).collect();
    let mut faults = Vec::new();
    let mut waiting: VecDeque<usize> = (0..asked.len()).collect();
    let mut group = RunGroup::default();
    loop {
        while let Some(next) = waiting.front().copied()
            && !signals.interrupt.is_requested()
            && takes(args, &shared, &asked, &group.under_way(), next)?
        {
            waiting.pop_front();
            // Once something has begun, one that cannot begin does not end the others.
            let is_first =
                group.under_way().is_empty() && faults.is_empty() && ran.iter().all(|one| one.outcome.is_none());
            let mut failed = |error: CliError| match is_first {
                true => Err(error),
                false => {
                    faults.push(format!("{}: {error}", asked[next].name));
                    Ok(())
                }
            };
            match open(&shared, &asked[next]) {
                Err(error) => failed(error)?,
                Ok(Opened::Over(outcome)) => {
                    let output = asked[next].settings.output.display();
                    tell(format_args!("{output} already holds this training, and it has ended"));
                    ran[next].earlier_tokens = outcome.progress.trainer.tokens;
                    ran[next].outcome = Some(outcome);
                }
                Ok(Opened::Run(run)) => {
                    ran[next].earlier_tokens = run.trainer().tokens();
                    let watch = watch(args, &asked[next], &run, &signals);
                    let join = |watch| group.join(next, *run, Box::new(watch)).map_err(opening_error);
                    match watch.and_then(join) {
                        Err(error) => failed(error)?,
                        Ok(()) => tell_who(&asked, &group.under_way()),
                    }
                }
            }
        }
        if group.under_way().is_empty() {
            break;
        }
        for Ended { number, outcome } in group.step().map_err(CliError::failed)? {
            match outcome {
                Ok(outcome) => ran[number].outcome = Some(outcome),
                Err(error) => faults.push(format!("{}: {error}", asked[number].name)),
            }
        }
    }
    report(args, &asked, &ran, faults, started.elapsed().as_secs_f64(), &signals)
}

/// Reads the recipes, which must agree.
fn asked(args: &Args) -> Result<Vec<Asked>, CliError> {
    let mut all: Vec<Asked> = Vec::new();
    for file in args.recipes() {
        let recipe = RecipeFile::read(file)?;
        let wrong = |error: &dyn std::fmt::Display| CliError::bad(format!("{}: {error}", file.display()));
        recipe.check_in_group().map_err(|error| wrong(&error))?;
        if let Some(first) = all.first() {
            let agreed = recipe.check_shares_base(&first.recipe);
            agreed.map_err(|error| CliError::bad(format!("{}: {error} ({})", file.display(), first.file.display())))?;
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let output = match args.output() {
            Some(folder) => folder.join(&name),
            None => usual_output(file),
        };
        if let Some(other) = all.iter().find(|other| other.settings.output == output) {
            return Err(CliError::bad(format!(
                "{} and {} would both be written to {}; rename one of the files",
                other.file.display(),
                file.display(),
                output.display()
            )));
        }
        let settings = args.settings(output);
        settings.check(&recipe).map_err(CliError::bad_input)?;
        all.push(Asked {
            file: file.clone(),
            name,
            recipe,
            settings,
        });
    }
    Ok(all)
}

/// Loads what the first recipe names, which is the same for all.
fn load(args: &Args, asked: &[Asked]) -> Result<Shared, CliError> {
    let first = &asked[0].recipe;
    let files =
        ModelFiles::resolve_weights(&first.model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let data = data_of(first, &files)?;
    for one in asked {
        if let Some(warning) = epochs::warning_of_recipe(&one.recipe, &data)? {
            tell(format_args!("warning: {}: {warning}", one.name));
        }
    }
    let places = args.places(first)?;
    let device = device::open(places.first().unwrap_or_else(|| device::default_name())).map_err(CliError::bad_input)?;
    let base = load_base(&files.folder, first, &data, None, &device).map_err(CliError::bad_input)?;
    Together::check_base(&base).map_err(CliError::bad_input)?;
    let room = Room::new(&base, first, &data)?;
    Ok(Shared {
        base: Arc::new(base),
        model_folder: files.folder,
        data,
        room,
    })
}

impl Room {
    fn new(base: &BaseModel, recipe: &Recipe, data: &PreparedData) -> Result<Self, CliError> {
        let source =
            BatchSource::new(data.train().clone(), &recipe.batch, RowOrder::File).map_err(CliError::bad_input)?;
        let (host, memory_bytes) = match device::facts(base.device()) {
            Some(gpu) => (Host::gpu(gpu.memory_bytes), Some(gpu.memory_bytes)),
            None => (ceilings::host(), usable_memory_bytes()),
        };
        Ok(Self {
            predictor: peft_tune_engine::predictor(base.architecture().clone(), Machine::Unmeasured(host)),
            workload: RowLengths::new(source.row_documents()).workload(recipe.batch.micro_batch),
            memory_bytes,
        })
    }

    /// Whether the memory holds these trainings together.
    fn holds(&self, recipes: &[&Recipe]) -> Result<bool, CliError> {
        let Some(bytes) = self.memory_bytes else {
            return Ok(true);
        };
        let settings = recipes.iter().map(|recipe| Setting {
            recipe,
            workload: &self.workload,
        });
        let settings: Vec<Setting<'_>> = settings.collect();
        self.predictor
            .holds_group(&settings, bytes as f64)
            .map_err(CliError::bad_input)
    }
}

/// Whether another training may begin beside those under way. One alone always may: its own limits are not judged here.
fn takes(args: &Args, shared: &Shared, asked: &[Asked], under_way: &[usize], next: usize) -> Result<bool, CliError> {
    if under_way.is_empty() {
        return Ok(true);
    }
    if args.at_a_time().is_some_and(|most| under_way.len() >= most) {
        return Ok(false);
    }
    let all = under_way.iter().chain([&next]);
    shared
        .room
        .holds(&all.map(|number| &asked[*number].recipe).collect::<Vec<_>>())
}

fn open(shared: &Shared, asked: &Asked) -> Result<Opened, CliError> {
    let inputs = RunInputs {
        base: Arc::clone(&shared.base),
        model_folder: shared.model_folder.clone(),
        recipe: asked.recipe.clone(),
        data: shared.data.clone(),
    };
    TrainingRun::open(inputs, asked.settings.clone()).map_err(opening_error)
}

fn watch(args: &Args, asked: &Asked, run: &TrainingRun, signals: &Signals) -> Result<TrainWatch, CliError> {
    announce(run, Some(&asked.name));
    write_recipe(&asked.settings.output, &asked.recipe)?;
    let (first, total) = (run.trainer().steps(), run.total_steps());
    let display = match args.json {
        true => Display::Json,
        false => Display::lines(first, total),
    };
    let due = LogEvery {
        every: args.log_every(),
        first,
        total,
    };
    let events = event_file(&asked.settings, run)?;
    Ok(TrainWatch::new(display, events, signals.interrupt.clone(), due).named(&asked.name))
}

/// Says which trainings share the passes from now on.
fn tell_who(asked: &[Asked], under_way: &[usize]) {
    let names: Vec<&str> = under_way.iter().map(|number| asked[*number].name.as_str()).collect();
    if let [.., last] = names.as_slice() {
        tell(format_args!("{last} begins; training together: {}", names.join(", ")));
    }
}

fn report(
    args: &Args,
    asked: &[Asked],
    ran: &[Ran],
    mut faults: Vec<String>,
    seconds: f64,
    signals: &Signals,
) -> Result<(), CliError> {
    // Each fault so far is that of a training without an outcome. The others without one were not begun.
    let mut interrupted = ran.iter().filter(|one| one.outcome.is_none()).count() > faults.len();
    let mut tokens = 0;
    for (one, ran) in asked.iter().zip(ran) {
        let Some(outcome) = &ran.outcome else { continue };
        let output = one.settings.output.display().to_string();
        tokens += outcome.progress.trainer.tokens.saturating_sub(ran.earlier_tokens);
        if args.json {
            write_result(&with_name(&end_line(outcome, &output), &one.name))?;
        }
        match &outcome.ending {
            Ending::Finished | Ending::StoppedEarly { .. } if args.json => {}
            Ending::Finished | Ending::StoppedEarly { .. } => {
                write_result(&format!("{}: {}\n", one.name, summary(outcome, &output)))?;
            }
            Ending::Interrupted { checkpoint } => {
                interrupted = true;
                let (name, step) = (&one.name, outcome.progress.trainer.step);
                tell(format_args!(
                    "{name}: checkpoint of step {step} in {}",
                    checkpoint.display()
                ));
            }
            Ending::Diverged {
                at_step, what, help, ..
            } => {
                let help = help.replacen("lower `", "lower its `", 1);
                faults.push(format!("{} diverged: {what} in step {at_step}; {help}", one.name));
            }
        }
    }
    if !args.json {
        let (count, rate) = (
            ran.iter().filter(|one| one.outcome.is_some()).count(),
            tokens as f64 / seconds,
        );
        let all = duration(seconds);
        tell(format_args!(
            "{count} trainings, {tokens} tokens in {all} ({rate:.0} tokens/s together)"
        ));
    }
    if interrupted {
        faults.iter().for_each(|fault| tell(format_args!("{fault}")));
        return Err(CliError::Interrupted {
            command: this_command(&["--force"], &["--resume".to_owned()]),
            code: signals.exit_code(),
        });
    }
    match faults.as_slice() {
        [] => Ok(()),
        _ => {
            let message = format!("{}; the other trainings went on", faults.join("; "));
            Err(CliError::failed(anyhow::anyhow!(message)))
        }
    }
}

/// The object of a training with its name.
fn with_name(line: &str, name: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(line) {
        Ok(mut value) => {
            value["training"] = name.into();
            format!("{value}\n")
        }
        Err(_) => line.to_owned(),
    }
}
