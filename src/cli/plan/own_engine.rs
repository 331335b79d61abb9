//! `peft-tune plan --stack peft-tune`: what a setting needs in this program's own engine on a device, in the words of the
//! plans for other tools.

use std::path::Path;

use super::baseline_setting::baseline_recipe;
use super::stack_args::StackArgs;
use super::stack_text::PlanOfRows;
use crate::cli::CliError;
use crate::cli::data::study_file::study_of;
use crate::cli::data::study_rows::lengths_of;
use crate::report::bytes;
use crate::tools::plan::{Assumed, FrontierPoint, StackPlan, lengths_around};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::{OwnEngine, Sharing, StackDevice};
use peft_tune_core::predict::{PredictError, Scaling};
use peft_tune_core::recipe::{OptimizerOffload, Recipe, Sharding};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::predictor;

/// Whether a name is that of this program.
pub(super) fn is_named(stack: &str) -> bool {
    stack.trim().eq_ignore_ascii_case(OwnEngine::NAME)
}

/// The plan of a study's setting.
///
/// # Errors
/// Bad input: no study file, a model that the engine does not run, devices that are to share weights out, `rows_differ`.
pub(super) fn planned(
    file: Option<&Path>,
    args: &StackArgs,
    device: Option<StackDevice>,
) -> Result<PlanOfRows, CliError> {
    let Some(file) = file.filter(|_| args.check.is_none()) else {
        return Err(CliError::bad(
            "files of other tools are not run here: give a study file with `--stack peft-tune`",
        ));
    };
    let sharding = match args.sharing {
        None => None,
        Some(Sharing::Copies) => Some(Sharding::None),
        Some(Sharing::Full) => Some(Sharding::Full),
        Some(_) => {
            return Err(CliError::bad(
                "peft-tune has a copy of everything on each device, or shares all frozen weights out: write --sharing copies or fsdp",
            ));
        }
    };
    if args.rows_differ {
        return Err(CliError::bad(
            "--rows-differ is about what the allocator of other tools keeps: leave it out with `--stack peft-tune`",
        ));
    }
    let (study, has_data) = study_of(file)?;
    let mut recipe = baseline_recipe(&study)?;
    let lengths = lengths_of(&study, &recipe, has_data)?;
    let longest = lengths.as_ref().and_then(|lengths| lengths.longest_of(&recipe.batch));
    let note = longest.and_then(|longest| shorten(&mut recipe, longest));
    if let Some(model) = &args.model {
        recipe.model.clone_from(model);
    }
    if let Some(devices) = args.devices {
        recipe.batch.devices = usize::try_from(devices).map_err(CliError::bad_input)?;
    }
    recipe.batch.sharding = sharding.unwrap_or(recipe.batch.sharding);
    if args.offload {
        recipe.optimizer.offload = OptimizerOffload::Host;
    }
    let config = ModelFiles::resolve_config(&recipe.model).map_err(CliError::bad_input)?;
    let architecture = Architecture::from_config(&config).map_err(CliError::bad_input)?;
    let parameters = architecture.parameter_count().total();
    let most = architecture.max_positions as u64;
    let predictor = predictor(architecture, OwnEngine::machine(device));
    let engine = OwnEngine::new(predictor, device);
    let prediction = engine.predict(&recipe).map_err(CliError::bad_input)?;
    let host_bytes = engine.host_bytes(&recipe).map_err(CliError::bad_input)?;
    let on_host = (host_bytes > 0).then(|| {
        let share = bytes(host_bytes as f64);
        format!("updates take {share} of the host's memory")
    });
    let scaling = engine.scaling(&recipe).map_err(CliError::bad_input)?;
    let frontier = device.map(|_| frontier(&engine, &recipe, most)).transpose();
    let tokens = recipe.batch.sequence_length;
    let assumed = Assumed {
        tool: format!("{}, as --stack says", OwnEngine::NAME),
        rows: match note {
            Some(_) => format!("{tokens} tokens, as the longest of the data"),
            None => format!("{tokens} tokens, full"),
        },
        device: Assumed::devices(device, recipe.batch.devices as u64, args.devices.is_some()),
    };
    let plan = StackPlan {
        stack: OwnEngine::NAME,
        parameters,
        setting_text: setting_text(&recipe),
        setting: serde_json::to_value(&recipe).map_err(CliError::failed)?,
        scaling,
        limits: device.map(|_| engine.limits(&recipe)),
        frontier: frontier.map_err(CliError::bad_input)?.unwrap_or_default(),
        levers: engine.levers(&recipe).map_err(CliError::bad_input)?,
        assumed,
        notes: note
            .into_iter()
            .chain(on_host)
            .chain(over_nccl(scaling.as_ref()))
            .collect(),
        model: recipe.model,
        device,
        prediction,
    };
    Ok(PlanOfRows { plan, lengths })
}

/// What is to be said of GPUs whose sums go over their link.
fn over_nccl(scaling: Option<&Scaling>) -> Option<String> {
    scaling?.link?;
    Some(
        "GPUs are taken to meet over their link, by NCCL; a program built without it meets through the host's memory, which is slower"
            .to_owned(),
    )
}

/// Takes the longest row of the data for the longest that can be; says so.
fn shorten(recipe: &mut Recipe, longest: usize) -> Option<String> {
    let allowed = recipe.batch.sequence_length;
    if longest >= allowed {
        return None;
    }
    recipe.batch.sequence_length = longest;
    Some(format!(
        "no row is longer than {longest} tokens: the figures are those of rows of {longest}, and not of {allowed}"
    ))
}

fn frontier(engine: &OwnEngine, recipe: &Recipe, most: u64) -> Result<Vec<FrontierPoint>, PredictError> {
    let mut points = Vec::new();
    for sequence_length in lengths_around(recipe.batch.sequence_length as u64, most) {
        let mut one = recipe.clone();
        one.batch.sequence_length = sequence_length as usize;
        let micro_batch = engine.largest_micro_batch(&one);
        one.batch.micro_batch = micro_batch.max(1) as usize;
        let tokens_per_s = engine.predict(&one)?.tokens_per_s;
        points.push(FrontierPoint {
            sequence_length,
            micro_batch,
            tokens_per_s: tokens_per_s.filter(|_| micro_batch > 0),
        });
    }
    Ok(points)
}

/// A setting in words.
pub(super) fn setting_text(recipe: &Recipe) -> String {
    let trained = match &recipe.adapter {
        None => "all parameters".to_owned(),
        Some(adapter) => format!("adapters of rank {}", adapter.rank),
    };
    let batch = &recipe.batch;
    let devices = match batch.devices {
        0 | 1 => String::new(),
        devices => match batch.sharding {
            Sharding::None => format!(", {devices} devices (DDP)"),
            Sharding::Full => format!(", {devices} devices (frozen weights shared out)"),
        },
    };
    let updates = match recipe.optimizer.offload {
        OptimizerOffload::None => "",
        OptimizerOffload::Host => ", updates on the host",
    };
    format!(
        "{trained}, weights {}, micro-batch {} x accumulation {}, rows of {} tokens, checkpointing {}{devices}{updates}",
        recipe.precision.row().name,
        batch.micro_batch,
        batch.gradient_accumulation,
        batch.sequence_length,
        recipe.gradient_checkpointing
    )
}
