//! What an exported setting will need in its tool, and the micro-batch that fits there.

use super::args::Args;
use super::chosen_trials::Chosen;
use crate::cli::CliError;
use crate::cli::data::known_offline::KnownFacts;
use crate::export::ExportFormat;
use crate::report::bytes;
use crate::tools::Tool;
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{ModelShape, StackDevice, StackSetting, made_to_fit};
use peft_tune_core::recipe::Recipe;

/// The recipe that is written, and what is told of it.
pub(super) struct Need {
    pub recipe: Recipe,
    pub lines: Vec<String>,
}

impl Need {
    /// Finds what the setting of `chosen` needs in the tool of `format`. `None` where the format is no other stack's,
    /// or where the model's dimensions are not known here and no device was asked about.
    ///
    /// # Errors
    /// An unknown device; a setting that the stack cannot run or that cannot be made to fit; with `--strict`, one that does
    /// not fit as it is.
    pub(super) fn of(
        chosen: &Chosen,
        format: ExportFormat,
        facts: &KnownFacts,
        args: &Args,
    ) -> Result<Option<Self>, CliError> {
        let Some(stack) = format.tool() else {
            return match args.strict || args.device.is_some() {
                true => Err(CliError::bad(format!(
                    "`{}` is no other tool's file: export it without --device and --strict",
                    format.name()
                ))),
                false => Ok(None),
            };
        };
        let recipe = &chosen.recipe;
        if !stack.predicts(recipe.trainer) {
            return match args.strict || args.device.is_some() {
                true => Err(CliError::bad(format!(
                    "what `trainer: {}` needs is predicted for TRL alone: export it without --device and --strict",
                    recipe.trainer
                ))),
                false => Ok(None),
            };
        }
        let device = args.device.as_deref().map(predict::device).transpose();
        let device = device.map_err(CliError::bad_input)?.map(|sheet| StackDevice { sheet });
        // The study was searched for this tool on a device.
        let searched_for = chosen.target.filter(|target| target.stack == stack);
        let device = device.or(searched_for.and_then(|target| target.device));
        if args.strict && device.is_none() {
            return Err(CliError::bad(
                "whether a setting fits is a question of the device: name it with --device".to_owned(),
            ));
        }
        match (&facts.shape, device) {
            (None, None) => Ok(None),
            // Only the study asked about the device.
            (None, Some(_)) if args.device.is_none() && !args.strict => Ok(None),
            (None, Some(_)) => Err(CliError::bad(format!(
                "the config.json of `{}` is not on this machine, so what it needs is not known; export without --device",
                recipe.model
            ))),
            (Some(shape), None) => Ok(Some(Self::unchanged(recipe, stack, shape))),
            (Some(shape), Some(device)) => Self::on(recipe, stack, shape, device, args.strict).map(Some),
        }
    }

    fn unchanged(recipe: &Recipe, stack: Tool, shape: &ModelShape) -> Self {
        let setting = stack.setting_of(recipe);
        let lines = match predict::stack::predict(shape, &setting, None) {
            Ok(prediction) => {
                let needs = format!(
                    "{} will need about {} for this setting ({} of tensors); --device NAME says whether that fits",
                    stack.name(),
                    bytes(prediction.process_bytes as f64),
                    bytes(prediction.memory.tensors_bytes as f64),
                );
                [needs].into_iter().chain(not_proven(&setting)).collect()
            }
            Err(error) => vec![format!("warning: {error}")],
        };
        Self {
            recipe: recipe.clone(),
            lines,
        }
    }

    fn on(
        recipe: &Recipe,
        stack: Tool,
        shape: &ModelShape,
        device: StackDevice,
        strict: bool,
    ) -> Result<Self, CliError> {
        let setting = stack.setting_of(recipe);
        let fitting = made_to_fit(shape, &setting, device).map_err(CliError::bad_input)?;
        let name = device.sheet.name;
        let Some(fitting) = fitting else {
            return Err(CliError::bad(format!(
                "{} cannot train this on {name}, not with one row at a time: lower `sequence_length`, or see the levers of \
                 `peft-tune plan --stack {}`",
                stack.name(),
                stack.name()
            )));
        };
        let is_changed = fitting.micro_batch != setting.micro_batch;
        if is_changed && strict {
            return Err(CliError::bad(format!(
                "{} does not surely fit {name} at a micro-batch of {}; {} would: export without --strict, or choose another trial",
                stack.name(),
                setting.micro_batch,
                fitting.micro_batch
            )));
        }
        let prediction = predict::stack::predict(shape, &fitting, Some(device)).map_err(CliError::bad_input)?;
        let mut written = recipe.clone();
        written.batch.micro_batch = fitting.micro_batch as usize;
        written.batch.gradient_accumulation = fitting.gradient_accumulation as usize;
        let mut lines = Vec::new();
        if is_changed {
            lines.push(format!(
                "`batch`: micro-batch {} x accumulation {} became {} x {}, or {} would not surely fit {name}; the global batch \
                 is the same",
                setting.micro_batch,
                setting.gradient_accumulation,
                fitting.micro_batch,
                fitting.gradient_accumulation,
                stack.name()
            ));
        }
        let usable = device.usable_bytes() as f64;
        let speed = prediction.tokens_per_s.unwrap_or_default();
        lines.push(format!(
            "{} will need about {} of the {} of {name}, at about {speed:.0} tokens/s, padding counted",
            stack.name(),
            bytes(prediction.process_bytes as f64),
            bytes(usable),
        ));
        lines.extend(not_proven(&fitting));
        Ok(Self { recipe: written, lines })
    }
}

/// Line on a prediction that no measurement stands behind.
fn not_proven(setting: &StackSetting) -> Option<String> {
    let reason = setting.unproven()?;
    Some(format!(
        "what {} needs is predicted by an unproven model: {reason}",
        setting.stack.name
    ))
}
