//! `peft-tune plan --stack` and `plan --check`: what a setting would need in another tool, on a device.

use std::path::Path;

use super::baseline_setting::baseline_recipe;
use super::own_engine;
use super::stack_args::StackArgs;
use super::stack_text::{PlanOfRows, to_json, to_text};
use crate::cli::CliError;
use crate::cli::data::model_config::config_of;
use crate::cli::data::study_file::study_of;
use crate::cli::data::study_rows::lengths_of;
use crate::cli::data::uncut_rows::longest_of;
use crate::cli::forecast;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::output::{tell, terminal_width, write_result};
use crate::report::Lengths;
use crate::store::Store;
use crate::tools::Tool;
use crate::tools::import::{self, Imported};
use crate::tools::plan::{
    AskedChanges, AskedSetting, ModelConfig, Predicted, Searched, StackPlan, check_file, setting_text,
};
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{Fit, HOST, StackDevice, StackPrediction, StackSetting};

/// Plans and prints. The verdict is the exit code: 0 fits, 7 does not, 8 uncertain.
///
/// # Errors
/// Bad input; a setting that does not fit, or that may not.
pub(super) fn run(
    file: Option<&Path>,
    args: &StackArgs,
    device: Option<&str>,
    database: &DatabaseArgs,
    as_json: bool,
) -> Result<(), CliError> {
    let device = device.map(|name| device_of(name, database)).transpose()?;
    let planned = match args.stack.as_deref() {
        Some(name) if own_engine::is_named(name) => own_engine::planned(file, args, device)?,
        name => {
            let stack = name.map(Tool::from_name).transpose().map_err(CliError::bad_input)?;
            planned(asked(file, args, stack)?, device)?
        }
    };
    for note in &planned.plan.notes {
        tell(format_args!("warning: {note}"));
    }
    let text = match as_json {
        true => to_json(&planned),
        false => to_text(&planned, terminal_width()),
    };
    write_result(&text)?;
    match planned.plan.prediction.verdict.map(|verdict| verdict.fit) {
        Some(Fit::DoesNot) => Err(CliError::DoesNotFit),
        Some(Fit::Uncertain) => Err(CliError::MayNotFit),
        Some(Fit::Fits | Fit::Unproven) | None => Ok(()),
    }
}

/// The GPU of that name, or this machine's processor.
///
/// # Errors
/// Bad input: a name that no device has. Ceilings of the processor that could not be measured.
pub(in crate::cli) fn device_of(name: &str, database: &DatabaseArgs) -> Result<StackDevice, CliError> {
    if name != HOST {
        let sheet = predict::device(name).map_err(CliError::bad_input)?;
        return Ok(StackDevice { sheet });
    }
    let sheet = block_on(async {
        let store = Store::open(&database.path()).await?;
        let sheet = forecast::host_sheet(&store).await;
        store.close().await?;
        sheet
    })?;
    Ok(StackDevice { sheet })
}

/// A setting, the model that it is for, and the rows that are known of it.
struct Asked {
    setting: AskedSetting,
    model: String,
    config: ModelConfig,
    lengths: Option<Lengths>,
}

fn asked(file: Option<&Path>, args: &StackArgs, stack: Option<Tool>) -> Result<Asked, CliError> {
    let mut asked = match (&args.check, file, stack) {
        (Some(path), ..) => checked(path, args, stack)?,
        (None, Some(file), Some(stack)) => studied(file, args, stack)?,
        _ => {
            return Err(CliError::bad(
                "give a study file with --stack, or a settings file with --check",
            ));
        }
    };
    asked.setting.change(args.changes());
    Ok(asked)
}

fn checked(path: &Path, args: &StackArgs, stack: Option<Tool>) -> Result<Asked, CliError> {
    let imported = import::read_recipe(path, stack).map_err(CliError::bad_input)?;
    if args.verbose && !imported.silent.is_empty() {
        let keys = imported.silent.join("`, `");
        tell(format_args!("without effect on memory and speed: `{keys}`"));
    }
    of_file(path, imported, args.model.clone())
}

/// What was read of a settings file, for its model or for the one that is given.
fn of_file(path: &Path, mut imported: Imported, model: Option<String>) -> Result<Asked, CliError> {
    check_file(&imported).map_err(CliError::bad_input)?;
    let named = Some(imported.recipe.model.clone()).filter(|model| !model.is_empty());
    let model = model.or(named).ok_or_else(|| {
        CliError::bad(format!(
            "{} names no model; give its folder with --model",
            path.display()
        ))
    })?;
    let config = config_of(&model)?;
    imported.recipe.model.clone_from(&model);
    let longest = match imported.is_uncut {
        true => longest_of(&imported.recipe),
        false => None,
    };
    let setting = AskedSetting::of_file(path, imported, &config, longest).map_err(CliError::bad_input)?;
    Ok(Asked {
        setting,
        model,
        config,
        lengths: None,
    })
}

fn studied(file: &Path, args: &StackArgs, stack: Tool) -> Result<Asked, CliError> {
    let (study, has_data) = study_of(file)?;
    let recipe = baseline_recipe(&study)?;
    let mut asked = AskedSetting::of_recipe(&recipe, stack).map_err(CliError::bad_input)?;
    let lengths = lengths_of(&study, &recipe, has_data)?;
    let longest = lengths.as_ref().and_then(|lengths| lengths.longest_of(&recipe.batch));
    if let Some(note) = longest.and_then(|longest| shorten(&mut asked.setting, longest)) {
        let tokens = asked.setting.sequence_length;
        asked.rows = format!("{tokens} tokens, as the longest of the data is padded");
        asked.notes.push(note);
    }
    let model = args.model.clone().unwrap_or(recipe.model);
    Ok(Asked {
        setting: asked,
        config: config_of(&model)?,
        model,
        lengths,
    })
}

/// Takes the longest row of the data for the longest that can be, as the stack pads it; says so.
fn shorten(setting: &mut StackSetting, longest: usize) -> Option<String> {
    let allowed = setting.sequence_length;
    let padded = (longest as u64).next_multiple_of(setting.stack.pads_to);
    if padded >= allowed {
        return None;
    }
    setting.sequence_length = padded;
    Some(format!(
        "no row is longer than {longest} tokens: the figures are those of micro-batches padded to {padded}, and not to {allowed}"
    ))
}

fn predicted(asked: &Asked, device: Option<StackDevice>) -> Result<Predicted, CliError> {
    let shape = asked.config.shape().map_err(CliError::bad_input)?;
    Predicted::new(shape, &asked.setting, device).map_err(CliError::bad_input)
}

/// Expectation of a training by its settings file, as `plan --check` has it.
#[derive(Debug)]
pub(in crate::cli) struct Expectation {
    /// The tool, and what told it.
    pub tool: String,
    pub model: String,
    pub setting: StackSetting,
    /// The setting in words.
    pub setting_text: String,
    /// Rows in words.
    pub rows: String,
    pub device: Option<StackDevice>,
    pub prediction: StackPrediction,
    pub notes: Vec<String>,
}

/// Predicts what was read of the settings file at `path`, for its model or for the one that is given.
///
/// # Errors
/// Bad input: no model, or one that cannot be read; a setting that the tool cannot run.
pub(in crate::cli) fn expectation(
    path: &Path,
    imported: Imported,
    model: Option<String>,
    devices: Option<u64>,
    device: Option<StackDevice>,
) -> Result<Expectation, CliError> {
    let mut asked = of_file(path, imported, model)?;
    asked.setting.change(AskedChanges {
        devices,
        ..AskedChanges::default()
    });
    let Predicted {
        setting,
        prediction,
        notes,
        ..
    } = predicted(&asked, device)?;
    Ok(Expectation {
        tool: asked.setting.tool,
        model: asked.model,
        setting_text: setting_text(&setting),
        setting,
        rows: asked.setting.rows,
        device,
        prediction,
        notes,
    })
}

fn planned(asked: Asked, device: Option<StackDevice>) -> Result<PlanOfRows, CliError> {
    let predicted = predicted(&asked, device)?;
    let scaling = predicted.scaling().map_err(CliError::bad_input)?;
    // Each is some dozen predictions.
    let ((limits, frontier), levers) = rayon::join(
        || rayon::join(|| predicted.limits(), || predicted.frontier()),
        || predicted.levers(),
    );
    let searched = Searched {
        scaling,
        limits: limits.map_err(CliError::bad_input)?,
        frontier: frontier.map_err(CliError::bad_input)?,
        levers: levers.map_err(CliError::bad_input)?,
    };
    Ok(PlanOfRows {
        plan: StackPlan::new(asked.model, asked.setting, predicted, searched).map_err(CliError::failed)?,
        lengths: asked.lengths,
    })
}
