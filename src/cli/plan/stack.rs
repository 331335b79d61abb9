//! `peft-tune plan --stack` and `plan --check`: what a setting would need in another tool, on a device.

use std::path::Path;

use super::baseline_setting::baseline_recipe;
use super::own_engine;
use super::stack_args::StackArgs;
use super::stack_plan::{Assumed, FrontierPoint, StackPlan, lengths_around};
use super::stack_text::{setting_text, to_json, to_text, weights_text};
use crate::cli::CliError;
use crate::cli::data::matched_targets::match_targets;
use crate::cli::data::model_config::ModelConfig;
use crate::cli::data::study_file::study_of;
use crate::cli::data::study_rows::lengths_of;
use crate::cli::data::uncut_rows::take_length;
use crate::cli::forecast;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::output::{tell, terminal_width, write_result};
use crate::report::Lengths;
use crate::store::Store;
use crate::tools::Tool;
use crate::tools::import::{self, Imported};
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{
    Fit, HOST, ModelShape, Sharing, StackDevice, StackPrediction, StackSetting, levers, limits,
};
use peft_tune_core::recipe::TrainerKind;

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
    let plan = match args.stack.as_deref() {
        Some(name) if own_engine::is_named(name) => own_engine::planned(file, args, device)?,
        name => {
            let stack = name.map(Tool::from_name).transpose().map_err(CliError::bad_input)?;
            planned(asked(file, args, stack)?, device)?
        }
    };
    for note in &plan.notes {
        tell(format_args!("warning: {note}"));
    }
    let text = match as_json {
        true => to_json(&plan),
        false => to_text(&plan, terminal_width()),
    };
    write_result(&text)?;
    match plan.prediction.verdict.map(|verdict| verdict.fit) {
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

/// A setting, the model that it is for, and what is to be said of it.
struct Asked {
    setting: StackSetting,
    model: String,
    shape: ModelShape,
    lengths: Option<Lengths>,
    /// The tool and its rows, as a verdict's grounds have them.
    tool: String,
    rows: String,
    /// Whether the number of devices is said.
    counts_devices: bool,
    notes: Vec<String>,
}

impl Asked {
    /// Takes the number of devices that is given; says that one is assumed where work is shared out and none is.
    fn count_devices(&mut self, devices: Option<u64>) {
        if let Some(devices) = devices {
            self.setting.devices = devices;
            self.counts_devices = true;
        } else if self.setting.sharing != Sharing::Copies && self.setting.devices == 1 {
            self.notes
                .push("weights are shared out, but --devices is not given: one device is assumed".into());
        }
    }
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
    asked.count_devices(args.devices);
    asked.setting.sharing = args.sharing.unwrap_or(asked.setting.sharing);
    asked.setting.offloads |= args.offload;
    asked.setting.rows_differ |= args.rows_differ;
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
    check_trainer(
        imported.recipe.trainer,
        imported.tool,
        "make a study of it with `init --from`, and plan that with `--stack trl`",
    )?;
    let named = Some(imported.recipe.model.clone()).filter(|model| !model.is_empty());
    let model = model.or(named).ok_or_else(|| {
        CliError::bad(format!(
            "{} names no model; give its folder with --model",
            path.display()
        ))
    })?;
    let config = ModelConfig::of(&model)?;
    let shape = config.shape().map_err(CliError::bad_input)?;
    imported.recipe.model.clone_from(&model);
    let of_model = of_model(&mut imported, &config, &shape)?;
    let setting = imported.setting();
    let mut notes = std::mem::take(&mut imported.assumed);
    notes.extend(of_model);
    if !imported.uncounted.is_empty() {
        let keys = imported.uncounted.join("`, `");
        notes.push(format!(
            "`{keys}` of {}: not known here, and not counted",
            path.display()
        ));
    }
    Ok(Asked {
        tool: format!("{}, told {}", imported.tool.title(), imported.told_by),
        rows: rows_of(&setting, &imported),
        setting,
        model,
        shape,
        lengths: None,
        counts_devices: false,
        notes,
    })
}

/// What the model decides of a file: target modules by their names, and the length of rows that nothing cuts. Returns what is to be said.
fn of_model(imported: &mut Imported, config: &ModelConfig, shape: &ModelShape) -> Result<Vec<String>, CliError> {
    let mut told = Vec::new();
    if imported.expression.is_some() {
        told.extend(match_targets(imported, config.architecture().as_ref())?);
    }
    if imported.is_uncut {
        told.push(take_length(&mut imported.recipe, shape.max_positions));
    }
    Ok(told)
}

/// Rows of a settings file in words.
fn rows_of(setting: &StackSetting, imported: &Imported) -> String {
    let tokens = setting.sequence_length;
    let whose = match imported.said.contains("sequence_length") {
        _ if imported.is_uncut => "as nothing cuts them",
        true => "as the file says",
        false => "as the tool has it where the file says nothing",
    };
    let filled = match imported.recipe.batch.packing {
        true => "packed, so that each is full",
        false => "not packed: the figures are those of micro-batches whose longest row is full",
    };
    format!("{tokens} tokens, {whose}, {filled}")
}

fn studied(file: &Path, args: &StackArgs, stack: Tool) -> Result<Asked, CliError> {
    let (study, has_data) = study_of(file)?;
    let recipe = baseline_recipe(&study)?;
    check_trainer(recipe.trainer, stack, "write `--stack trl`")?;
    let mut setting = stack.setting_of(&recipe);
    let lengths = lengths_of(&study, &recipe, has_data)?;
    let longest = lengths.as_ref().and_then(|lengths| lengths.longest_of(&recipe.batch));
    let note = longest.and_then(|longest| shorten(&mut setting, longest));
    let rows = match note {
        Some(_) => format!(
            "{} tokens, as the longest of the data is padded",
            setting.sequence_length
        ),
        None => format!("{} tokens, full", setting.sequence_length),
    };
    let model = args.model.clone().unwrap_or(recipe.model);
    Ok(Asked {
        setting,
        shape: ModelConfig::of(&model)?.shape().map_err(CliError::bad_input)?,
        model,
        lengths,
        tool: format!("{}, as --stack says", stack.title()),
        rows,
        counts_devices: recipe.batch.devices > 1,
        notes: note.into_iter().collect(),
    })
}

/// Refuses a trainer that is predicted of another stack alone.
fn check_trainer(trainer: TrainerKind, stack: Tool, instead: &str) -> Result<(), CliError> {
    match stack.predicts(trainer) {
        true => Ok(()),
        false => Err(CliError::bad(format!(
            "`trainer: {trainer}` is predicted as TRL trains it, and not in {}; {instead}",
            stack.title()
        ))),
    }
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

/// A setting as it runs on its model, and what that needs.
struct Predicted {
    setting: StackSetting,
    prediction: StackPrediction,
    notes: Vec<String>,
}

fn predicted(asked: &Asked, device: Option<StackDevice>) -> Result<Predicted, CliError> {
    let shape = &asked.shape;
    let setting = asked.setting.on(shape).as_run(shape);
    let prediction = predict::stack::predict(shape, &setting, device).map_err(CliError::bad_input)?;
    let mut notes = asked.notes.clone();
    notes.extend(layout_note(shape));
    if let Some(stored) = &shape.stored {
        let (method, form) = (&stored.method, weights_text(stored.form));
        notes.push(format!(
            "the model's config.json says that its weights are quantized ({method}): they are counted as {form}"
        ));
    }
    if let Some(most) = shape.max_positions.filter(|most| setting.sequence_length > *most) {
        let length = setting.sequence_length;
        notes.push(format!(
            "rows of {length} tokens are longer than the {most} positions of the model"
        ));
    }
    Ok(Predicted {
        setting,
        prediction,
        notes,
    })
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
    asked.count_devices(devices);
    let Predicted {
        setting,
        prediction,
        notes,
    } = predicted(&asked, device)?;
    Ok(Expectation {
        tool: asked.tool,
        model: asked.model,
        setting_text: setting_text(&setting),
        setting,
        rows: asked.rows,
        device,
        prediction,
        notes,
    })
}

fn planned(asked: Asked, device: Option<StackDevice>) -> Result<StackPlan, CliError> {
    let Predicted {
        setting,
        prediction,
        notes,
    } = predicted(&asked, device)?;
    let shape = &asked.shape;
    let scaling = device.map(|device| predict::stack::scaling(shape, &setting, device));
    // Verdicts do not count cached blocks, and levers are compared with each other.
    let alike = StackSetting {
        rows_differ: false,
        ..setting.clone()
    };
    // Each is some dozen predictions.
    let ((largest, frontier), levers) = rayon::join(
        || {
            rayon::join(
                || device.map(|device| limits(shape, &alike, device)).transpose(),
                || device.map(|device| frontier(shape, &alike, device)).transpose(),
            )
        },
        || levers(shape, &alike, device),
    );
    Ok(StackPlan {
        stack: setting.stack.name,
        parameters: shape.parameters(),
        setting_text: setting_text(&setting),
        setting: serde_json::to_value(&setting).map_err(CliError::failed)?,
        scaling: scaling.transpose().map_err(CliError::bad_input)?.flatten(),
        limits: largest.map_err(CliError::bad_input)?,
        frontier: frontier.map_err(CliError::bad_input)?.unwrap_or_default(),
        levers: levers.map_err(CliError::bad_input)?,
        model: asked.model,
        lengths: asked.lengths,
        assumed: Assumed {
            tool: asked.tool,
            rows: asked.rows,
            device: Assumed::devices(device, setting.devices, asked.counts_devices),
        },
        device,
        prediction,
        notes,
    })
}

/// What is to be said of a model whose layers are taken for those of a plain decoder.
fn layout_note(shape: &ModelShape) -> Option<String> {
    let kind = &shape.model_type;
    (!shape.is_known).then(|| match shape.counted {
        Some(_) => format!(
            "the layers of `{kind}` are not all alike: their weights are counted, all else is that of a plain decoder, and the \
             reserve is wider"
        ),
        None => format!("the layout `{kind}` is not known: that of a plain decoder is assumed, and the reserve is wider"),
    })
}

/// The largest micro-batch at lengths around that of the setting.
fn frontier(
    shape: &ModelShape,
    setting: &StackSetting,
    device: StackDevice,
) -> Result<Vec<FrontierPoint>, predict::stack::StackError> {
    let most = shape.max_positions.unwrap_or(u64::MAX);
    let mut points = Vec::new();
    for sequence_length in lengths_around(setting.sequence_length, most) {
        let mut one = StackSetting {
            sequence_length,
            ..setting.clone()
        };
        if one.check(shape).is_err() {
            continue;
        }
        let micro_batch = predict::stack::largest_micro_batch(shape, &one, device)?;
        one.micro_batch = micro_batch.max(1);
        let tokens_per_s = predict::stack::predict(shape, &one, Some(device))?.tokens_per_s;
        points.push(FrontierPoint {
            sequence_length,
            micro_batch,
            tokens_per_s: tokens_per_s.filter(|_| micro_batch > 0),
        });
    }
    Ok(points)
}
