//! `peft-tune train`: a real fine-tuning from a recipe file, or several on one base ([`super::together`]).

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::args::Args;
use super::devices::TrainDevices;
use super::opening::{Interrupted, announce, data_of, opening_error};
use super::other_ranks::OtherRanks;
use super::outcome_text::{end_line, summary};
use super::output_folder::{event_file, write_recipe};
use super::together;
use super::watch::{Display, LogEvery, TrainWatch};
use crate::cli::CliError;
use crate::cli::data::epochs;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::cli::terminal::signals::listen;
use crate::cli::terminal::this_command::this_command;
use crate::space::RecipeFile;
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::run::{Ending, Opened, Outcome, RunInputs, RunSettings, TrainingRun};
use peft_tune_engine::{RankShare, load_base};
use peft_tune_kernels::device;

/// Trains, and prints how it went.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    if args.recipes().len() > 1 {
        return together::run(&args);
    }
    let recipe = RecipeFile::read(args.first())?;
    let settings = args.settings(args.output_folder());
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
        every: args.log_every(),
        first,
        total,
    };
    let events = event_file(&settings, &run)?;
    let mut watch = TrainWatch::new(display, events, signals.interrupt.clone(), due);
    let outcome = run.run(&mut watch);
    watch.finish();
    report(&args, &settings, &outcome.map_err(failed)?, signals.exit_code())
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
    let ranks = OtherRanks::start(places, &recipe, &args.output_folder(), args.rank_patience_s)?;
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
            help,
            checkpoint,
            ..
        } => {
            let kept = match checkpoint {
                Some(folder) => format!("the last good checkpoint is in {}", folder.display()),
                None => "no checkpoint had been written".to_owned(),
            };
            let message = format!("the training diverged: {what} in step {at_step}; {kept}; {help}");
            Err(CliError::failed(anyhow::anyhow!(message)))
        }
    }
}
