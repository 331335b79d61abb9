//! `peft-tune train`: a real fine-tuning from a recipe file, or several on one base ([`super::together`]).

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::devices::{AskedDevices, TrainDevices};
use super::other_ranks::OtherRanks;
use super::together;
use super::watch::{Display, LogEvery, TrainWatch};
use crate::cli::CliError;
use crate::cli::data::epochs;
use crate::cli::data::mixture;
use crate::cli::data::prepare::prepared;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::count::counts;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::cli::terminal::reading_progress::Reading;
use crate::cli::terminal::signals::{First, Reaction, listen};
use crate::cli::terminal::this_command::this_command;
use crate::report::duration;
use crate::space::RecipeFile;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::Recipe;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::{DeviceMemory, TensorBoard};
use peft_tune_engine::run::{
    Ending, Opened, Outcome, RunError, RunInputs, RunProgress, RunSettings, Start, TrainingRun,
};
use peft_tune_engine::{RankShare, load_base};
use peft_tune_kernels::device;

/// Train what a recipe file describes, and write a PEFT adapter (or, with `adapter: null`, a whole model).
///
/// Several recipe files train at the same time on one base model, which is read once: their adapters, optimizers, rates and
/// lengths may differ, and each ends as it would alone.
///
/// The output folder gets the adapter, checkpoints, the best adapter where there are several evaluations, event files for
/// TensorBoard, and the recipe. Ctrl-C finishes the step under way, writes a checkpoint and ends with exit code 130;
/// `--resume` continues from there, in float32 bit by bit as if nothing had happened.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Recipe file (YAML), or several that agree on model, data, batch, precision and checkpointing.
    #[arg(required = true, value_name = "RECIPE")]
    recipes: Vec<PathBuf>,
    /// Folder to write to; it must be empty, except with --resume or --force. Several recipes have a folder each in it, by
    /// the name of their file [default: <recipe>-trained].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Most of several recipes that train at a time; the others begin as these end [default: as many as the memory holds, by
    /// prediction].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    at_a_time: Option<u16>,
    /// Continue from the latest whole checkpoint in the output folder; start anew where there is none yet.
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Remove an earlier training from the output folder and start again.
    #[arg(long)]
    force: bool,
    /// Write a checkpoint after every N steps [default: a tenth of the training].
    #[arg(long, value_name = "N", value_parser = counts::<u64>(1..=u64::MAX))]
    checkpoint_every: Option<u64>,
    /// Keep the last K checkpoints.
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    keep_checkpoints: u16,
    /// Log one step in N to the event file and the screen, besides the first and the last.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = counts::<u64>(1..=u64::MAX))]
    log_every: u64,
    /// Stop after N evaluations in a row without a lower held-out loss.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
    /// Print one JSON object per step and per evaluation on standard output, and one at the end.
    #[arg(long)]
    pub(super) json: bool,
    /// Devices for the shares of the recipe's `devices`, one each, or one that computes them all: numbers of GPUs, or names such as
    /// `cuda:0` and `cpu` [default: the first GPUs, else processes on the CPU; one that is named by --device computes them all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "device")]
    devices: Vec<String>,
    /// Seconds after which a rank that the others wait for counts as hanging.
    #[arg(long, hide = true, env = "PEFT_TUNE_RANK_PATIENCE_S", default_value_t = 300.0)]
    rank_patience_s: f64,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
}

impl Args {
    /// How many processes of this training share this machine's threads. What is wrong with the recipe is said later.
    pub(in crate::cli) fn processes(&self) -> usize {
        let devices = RecipeFile::read(self.first())
            .ok()
            .and_then(|recipe| self.places(&recipe).ok());
        devices.map_or(1, |devices| devices.processes())
    }

    /// The first recipe file; there is always one.
    fn first(&self) -> &Path {
        self.recipes.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// All recipe files.
    pub(super) fn recipes(&self) -> &[PathBuf] {
        &self.recipes
    }

    pub(super) fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    pub(super) fn at_a_time(&self) -> Option<usize> {
        self.at_a_time.map(usize::from)
    }

    pub(super) fn log_every(&self) -> u64 {
        self.log_every
    }

    /// Where the recipe's shares are computed.
    pub(super) fn places(&self, recipe: &Recipe) -> Result<TrainDevices, CliError> {
        let asked = AskedDevices {
            one: self.compute.device.as_deref(),
            each: &self.devices,
        };
        TrainDevices::new(recipe.batch.devices, asked, device::gpu_count())
    }
}

/// Trains, and prints how it went.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    if args.recipes.len() > 1 {
        return together::run(&args);
    }
    let recipe = RecipeFile::read(args.first())?;
    let settings = settings_of(&args, output_of(&args));
    settings.check(&recipe).map_err(CliError::bad_input)?;
    let has_begun = Arc::new(AtomicBool::new(false));
    let signals = listen(Interrupted(Arc::clone(&has_begun)), Duration::ZERO).map_err(CliError::failed)?;
    let places = args.places(&recipe)?;
    let (inputs, ranks) = load(&args, recipe, &places)?;
    let recipe = inputs.recipe.clone();
    has_begun.store(true, Relaxed);
    let run = match TrainingRun::open(inputs, settings.clone()).map_err(opening_error)? {
        Opened::Run(run) => *run,
        Opened::Over(outcome) => {
            let output = settings.output.display();
            tell(format_args!("{output} already holds this training, and it has ended"));
            return report(&args, &settings, &outcome, signals.exit_code());
        }
    };
    let failed = |error| OtherRanks::explain(ranks.as_ref(), &settings.output, error);
    let run = match &ranks {
        Some(ranks) => run.lead(Arc::clone(&ranks.collective)).map_err(failed)?,
        None => run,
    };
    announce(&run, None);
    write_recipe(&settings.output, &recipe)?;
    let (first, total) = (run.trainer().steps(), run.total_steps());
    let display = match (args.json, std::io::stderr().is_terminal()) {
        (true, _) => Display::Json,
        (false, true) => Display::bar(first, total),
        (false, false) => Display::lines(first, total),
    };
    let due = LogEvery {
        every: args.log_every,
        first,
        total,
    };
    let events = event_file(&settings, &run)?;
    let mut watch = TrainWatch::new(display, events, signals.interrupt.clone(), due);
    let outcome = run.run(&mut watch);
    watch.finish();
    report(&args, &settings, &outcome.map_err(failed)?, signals.exit_code())
}

/// What a training says when it is interrupted: it holds whether there is something to finish.
pub(super) struct Interrupted(pub Arc<AtomicBool>);

impl Reaction for Interrupted {
    fn first(&self) -> First {
        if self.0.load(Relaxed) {
            let message = "finishing the step under way and writing a checkpoint; Ctrl-C again ends at once";
            return First::GoesOn(message.to_owned());
        }
        First::Ends(format!(
            "stopped before the first step, and nothing is lost; `{}` begins again",
            this_command(&[], &[])
        ))
    }
}

/// Says where a training continues from, and which one it is where there are several.
pub(super) fn announce(run: &TrainingRun, name: Option<&str>) {
    let name = name.map_or_else(String::new, |name| format!("{name}: "));
    for damaged in run.damaged() {
        tell(format_args!("warning: {} is damaged and skipped", damaged.display()));
    }
    if let Some(checkpoint) = run.resumed_from() {
        let (steps, checkpoint) = (run.trainer().steps(), checkpoint.display());
        tell(format_args!("{name}continuing after step {steps} from {checkpoint}"));
    }
}

/// What a training that writes to `output` is told beside its recipe.
pub(super) fn settings_of(args: &Args, output: PathBuf) -> RunSettings {
    RunSettings {
        start: match (args.resume, args.force) {
            (true, _) => Start::Resume,
            (false, true) => Start::Force,
            (false, false) => Start::New,
        },
        checkpoint_every: args.checkpoint_every,
        keep_checkpoints: usize::from(args.keep_checkpoints),
        patience: args.patience,
        ..RunSettings::new(output)
    }
}

fn output_of(args: &Args) -> PathBuf {
    args.output.clone().unwrap_or_else(|| usual_output(args.first()))
}

/// Where a training goes if nobody says where.
pub(super) fn usual_output(recipe: &Path) -> PathBuf {
    let stem = recipe.file_stem().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("{stem}-trained"))
}

/// The data of a recipe, with the warnings that belong to them.
pub(super) fn data_of(recipe: &Recipe, files: &ModelFiles) -> Result<PreparedData, CliError> {
    let data = prepared(recipe, files, Reading::shown())?;
    let architecture = Architecture::from_config(&files.config).map_err(CliError::bad_input)?;
    data.check_fits(&architecture).map_err(CliError::bad_input)?;
    for warning in data.warnings() {
        tell(format_args!("warning: {warning}"));
    }
    let length = Some(recipe.training.length);
    for warning in mixture::warnings(&recipe.data.train, &recipe.batch, length, &data)? {
        tell(format_args!("warning: {warning}"));
    }
    Ok(data)
}

/// Loads what is trained. The other ranks load it too meanwhile.
fn load(args: &Args, recipe: Recipe, places: &TrainDevices) -> Result<(RunInputs, Option<OtherRanks>), CliError> {
    let files =
        ModelFiles::resolve_weights(&recipe.model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let data = data_of(&recipe, &files)?;
    if let Some(warning) = epochs::warning_of_recipe(&recipe, &data)? {
        tell(format_args!("warning: {warning}"));
    }
    // From the cache of tokens, which is there now.
    let ranks = OtherRanks::start(places, &recipe, &output_of(args), args.rank_patience_s)?;
    let device = device::open(places.first().unwrap_or_else(|| device::default_name())).map_err(CliError::bad_input)?;
    let share = ranks
        .as_ref()
        .and_then(|ranks| RankShare::of(&recipe, ranks.collective.as_ref()));
    let base = load_base(&files.folder, &recipe, &data, share, &device).map_err(CliError::bad_input)?;
    let inputs = RunInputs {
        base: Arc::new(base),
        model_folder: files.folder,
        recipe,
        data,
    };
    Ok((inputs, ranks))
}

pub(super) fn event_file(settings: &RunSettings, run: &TrainingRun) -> Result<TensorBoard, CliError> {
    let memory = DeviceMemory::of(run.trainer().base().device()).map_err(CliError::failed)?;
    let folder = settings.output.join("tensorboard");
    TensorBoard::create(&folder, run.trainer().steps(), memory).map_err(|error| {
        let message = format!("cannot write an event file into {}", folder.display());
        CliError::failed(anyhow::Error::new(error).context(message))
    })
}

/// Whatever keeps a training from starting is bad input, but for the file system and the memory.
pub(super) fn opening_error(error: RunError) -> CliError {
    match &error {
        RunError::File { .. } => CliError::failed(error),
        RunError::Train(inner) if inner.out_of_memory() => CliError::failed(error),
        _ => CliError::bad_input(error),
    }
}

pub(super) fn write_recipe(output: &Path, recipe: &Recipe) -> Result<(), CliError> {
    let path = output.join("recipe.yaml");
    let text = RecipeFile::to_yaml(recipe).map_err(CliError::bad_input)?;
    write_whole(&path, text.as_bytes(), true).map_err(|error| {
        let message = format!("cannot write {}", path.display());
        CliError::failed(anyhow::Error::new(error).context(message))
    })
}

fn report(args: &Args, settings: &RunSettings, outcome: &Outcome, interrupted: u8) -> Result<(), CliError> {
    let output = settings.output.display().to_string();
    if args.json {
        write_result(&end_line(outcome, &output))?;
    }
    match &outcome.ending {
        Ending::Finished | Ending::StoppedEarly { .. } if args.json => Ok(()),
        Ending::Finished | Ending::StoppedEarly { .. } => write_result(&summary(outcome, &output)),
        Ending::Interrupted { checkpoint } => {
            tell(format_args!(
                "checkpoint of step {} in {}",
                outcome.progress.trainer.step,
                checkpoint.display()
            ));
            Err(CliError::Interrupted {
                command: this_command(&["--force"], &["--resume".to_owned()]),
                code: interrupted,
            })
        }
        Ending::Diverged {
            at_step,
            what,
            checkpoint,
        } => {
            let kept = match checkpoint {
                Some(folder) => format!("the last good checkpoint is in {}", folder.display()),
                None => "no checkpoint had been written".to_owned(),
            };
            let message = format!("the training diverged: {what} in step {at_step}; {kept}; lower `learning_rate`");
            Err(CliError::failed(anyhow::anyhow!(message)))
        }
    }
}

/// The last object of `--json`, or of a training.
pub(super) fn end_line(outcome: &Outcome, output: &str) -> String {
    let mut line = serde_json::json!({"event": "end"});
    if let (Some(line), Ok(serde_json::Value::Object(ending))) =
        (line.as_object_mut(), serde_json::to_value(&outcome.ending))
    {
        line.extend(ending);
        let progress = &outcome.progress;
        let evaluation = progress.last_evaluation.as_ref();
        line.insert("steps".into(), progress.trainer.step.into());
        line.insert("total_steps".into(), outcome.total_steps.into());
        line.insert("tokens".into(), progress.trainer.tokens.into());
        line.insert("training_loss".into(), progress.last_loss.into());
        line.insert(
            "held_out_loss".into(),
            evaluation.map(|evaluation| evaluation.loss).into(),
        );
        line.insert("best_step".into(), progress.best.map(|best| best.step).into());
        line.insert("best_held_out_loss".into(), progress.best.map(|best| best.loss).into());
        if !progress.precision_decisions.is_empty() {
            let decisions = serde_json::to_value(&progress.precision_decisions).unwrap_or_default();
            line.insert("precision_decisions".into(), decisions);
        }
        line.insert("seconds".into(), progress.seconds.into());
        let beside = progress.beside;
        line.insert("evaluation_s".into(), beside.evaluation_s.into());
        line.insert("checkpoint_s".into(), beside.checkpoint_s.into());
        line.insert("logging_s".into(), beside.logging_s.into());
        if progress.shared_with > 0 {
            line.insert("shared_with".into(), progress.shared_with.into());
        }
        line.insert("output".into(), output.into());
    }
    format!("{line}\n")
}

pub(super) fn summary(outcome: &Outcome, output: &str) -> String {
    let progress = &outcome.progress;
    let tokens_per_s = progress.trainer.tokens as f64 / progress.seconds;
    let beside = match progress.shared_with {
        0 => "evaluations included".to_owned(),
        others => format!("beside up to {others} other trainings, whose time is in it"),
    };
    let mut text = format!(
        "trained {} of {} steps, {} tokens in {} ({tokens_per_s:.0} tokens/s, {beside})\n",
        progress.trainer.step,
        outcome.total_steps,
        progress.trainer.tokens,
        duration(progress.seconds),
    );
    if let Ending::StoppedEarly { evaluations } = outcome.ending {
        text += &format!("stopped early: {evaluations} evaluations without a lower held-out loss\n");
    }
    if let (Some(loss), Some(evaluation)) = (progress.last_loss, &progress.last_evaluation) {
        text += &format!("training loss {loss:.4}, held-out loss {:.4}\n", evaluation.loss);
    }
    text += &beside_the_steps(progress);
    text += &format!("written to {output}\n");
    if let (Some(folder), Some(best)) = (&outcome.best_folder, progress.best) {
        let folder = folder.display();
        text += &format!(
            "lowest held-out loss {:.4} after step {}, kept in {folder}\n",
            best.loss, best.step
        );
    }
    text
}

/// What the training did beside its steps, as parts of all of its time.
fn beside_the_steps(progress: &RunProgress) -> String {
    let beside = progress.beside;
    let all = (progress.seconds + beside.checkpoint_s + beside.logging_s).max(f64::MIN_POSITIVE);
    let percent = |seconds: f64| 100.0 * seconds / all;
    format!(
        "time spent: evaluations {:.1}%, checkpoints {:.1}%, logging {:.1}%\n",
        percent(beside.evaluation_s),
        percent(beside.checkpoint_s),
        percent(beside.logging_s)
    )
}
