//! `peft-tune check`, from its recipe to its verdict.

use std::path::PathBuf;

use super::args::Args;
use super::checked_file::CheckedFile;
use super::comparison::Comparison;
use super::setting::CheckedRecipe;
use super::text::{Report, steps_text};
use crate::cli::CliError;
use crate::cli::engines::{Bound, EngineWorker, Length, Products, folder};
use crate::cli::options::backend::BackendName;
use crate::cli::processes::interpreter::{Interpreter, Stack};
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, terminal_width, write_exact, write_result};
use crate::cli::train::opening::data_of;
use crate::report::printable;
use crate::space::{Loader, RecipeFile};
use crate::worker::{FirstAdapter, Placement};
use peft_tune_engine::hub::ModelFiles;

/// Trains in both engines, and prints how they compare.
///
/// # Errors
/// Engines that do not agree, and whatever keeps one of them from training.
pub(in crate::cli) fn run(args: &Args) -> Result<(), CliError> {
    args.compute.set_up();
    match args.backend {
        BackendName::Trl => {}
        BackendName::Native => {
            return Err(CliError::bad(
                "`--backend native`: that is the built-in engine, which is compared with another; write `--backend trl`",
            ));
        }
        BackendName::Unsloth => {
            return Err(CliError::bad(
                "`--backend unsloth`: steps in unsloth are not compared with the built-in engine so far; write `--backend trl`",
            ));
        }
    }
    let file = CheckedFile::new(args.recipe.as_deref())?;
    let mut recipe = RecipeFile::read(file.path())?;
    recipe.precision = args.precision.unwrap_or(recipe.precision);
    let checked = CheckedRecipe::of(file.path(), recipe)?;
    let stack = Interpreter::find(args.python.as_deref())?.probe(Loader::Transformers)?;
    let device = args.device(&stack)?;
    checked.check(file.path(), device == "cpu", &stack.packages)?;
    let files = ModelFiles::resolve_weights(&checked.recipe.model, &mut DownloadProgress::default())
        .map_err(CliError::bad_input)?;
    // Read once, for the workers of both to find in the cache.
    drop(data_of(&checked.recipe, &files)?);
    for changed in &checked.changed {
        tell(changed);
    }
    let report = Report {
        recipe: file.name(),
        precision: checked.recipe.precision.name(),
        device: &device,
        stack: &stack,
        changed: &checked.changed,
        comparison: compare(args, &checked, &stack, &device)?,
    };
    match args.json {
        true => write_exact(&report.to_json()?)?,
        false => write_result(&report.to_text(terminal_width()))?,
    }
    match report.comparison.agrees {
        true => Ok(()),
        false => Err(CliError::EnginesDiffer(report.comparison.reasons.join("; "))),
    }
}

/// The trainings of both engines, one after the other, each in a process of its own.
fn compare(args: &Args, checked: &CheckedRecipe, stack: &Stack, device: &str) -> Result<Comparison, CliError> {
    let folder = folder::temporary("hand an adapter over")?;
    let adapter = folder.path().join("adapter");
    let recipe = &checked.recipe;
    let handed = |how: fn(PathBuf) -> FirstAdapter| recipe.adapter.is_some().then(|| how(adapter.clone()));
    let slot = Placement {
        device: Some(device.to_owned()),
        threads: args.compute.threads(),
        hardware: device.to_owned(),
        ..Placement::default()
    };
    let native = EngineWorker {
        engine: BackendName::Native,
        words: args.compute.kernels.words(),
        slot: slot.clone(),
    };
    let steps = steps_text(args.steps);
    let trl = EngineWorker {
        engine: BackendName::Trl,
        words: stack.worker_words(),
        slot,
    };
    tell(format_args!("training {steps} in {} on {device}", native.engine.text()));
    let native = native.train(recipe.clone(), Length::whole(args.steps), handed(FirstAdapter::Write))?;
    tell(printable(&format!(
        "training {steps} in {}: {}, {}",
        trl.engine.text(),
        stack.interpreter.display(),
        stack.versions()
    )));
    let other = checked.for_other();
    let products = Products::of(device, &other.torch);
    let trl = trl.train(other, Length::whole(args.steps), handed(FirstAdapter::Read))?;
    Ok(Comparison::new(native, trl, Bound::of(recipe.precision, products)))
}
