//! `peft-tune trial-files`: files that a trial in another stack trains from. A worker of that stack starts it.
//!
//! A trial in TRL is what `export` writes for it: the exporter makes the file, and only rows, length and seed are the
//! trial's. The rows lie in the cache as token ids and labels, an Arrow stream for each split, which
//! `datasets.Dataset.from_file` maps into memory; those of preferences as JSON lines, whose tokens the trainer makes. Their
//! names come from their tokens, so that trials on the same tokens share them.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cached_rows::{cached_preferences, cached_tokens};
use super::preference_rows;
use super::row_files::RowFiles;
use super::token_rows;
use crate::cli::CliError;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::terminal::output::write_exact;
use crate::space::Loader;
use crate::tools::Tool;
use crate::tools::export::{DEEPSPEED_FILE, ExportInput, Known, RenderError, Rendered, Warning};
use crate::worker::schedule_in_part;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::deepspeed_refuses;
use peft_tune_core::recipe::{
    DataSettings, Recipe, TargetModules, TargetPreset, TrainedRows, TrainerKind, TrainingLength,
};
use peft_tune_core::study::{Metrics, TrialNumber, TrialPlan};
use peft_tune_engine::data::{BatchSource, PreparedData, evaluation_batches};
use peft_tune_engine::hub::ModelFiles;

/// Number of seeds that NumPy takes, and with it `transformers.set_seed`.
const SEEDS: u64 = 1 << 32;
/// Study that the file's comment and output folder name: the worker knows none, and reads neither.
const STUDY: &str = "search";

/// Make the files that a trial in another stack trains from. A worker of that stack starts this by itself.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {}

/// Trial that is asked for, on one line of standard input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    tool: String,
    recipe: Recipe,
    plan: TrialPlan,
}

/// Answer on one line of standard output. The worker reads its fields by these names.
#[derive(Serialize)]
struct TrialFiles {
    /// Text of the file that the tool would be started with.
    config: String,
    /// Texts of the files that it names by their names alone, for the folder that the trial runs in.
    beside: BTreeMap<&'static str, String>,
    /// Folder of the model.
    model: PathBuf,
    /// File of the rows that are trained on.
    train: PathBuf,
    /// File of the windows in which held-out rows are scored; of preferences of the rows themselves.
    held_out: PathBuf,
    /// The tool's trainer: files of preferences are JSON lines of text, and others streams of tokens.
    trainer: &'static str,
    /// Tokens that held-out rows of preferences are cut to.
    held_out_length: usize,
    steps: u64,
    steps_per_epoch: u64,
    epochs: f64,
    /// Windows that an evaluation scores, from the first one on.
    held_out_windows: usize,
    /// Settings that the tool would train otherwise: a trial with any is not to be measured.
    refused: Vec<String>,
}

/// Answers one request.
pub(in crate::cli) fn run(_: Args) -> Result<(), CliError> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(CliError::bad_input)?;
    let request: Request = serde_json::from_str(&line).map_err(|error| {
        CliError::bad(format!(
            "standard input holds no trial: {error}; write one line of JSON with `tool`, `recipe` and `plan`"
        ))
    })?;
    let tool = Tool::from_name(&request.tool).map_err(CliError::bad_input)?;
    if Loader::of(tool).is_none() {
        let title = tool.title();
        return Err(CliError::bad(format!(
            "no worker trains in {title}; ask for `trl` or `unsloth`"
        )));
    }
    let files = TrialFiles::of(tool, &request.recipe, &request.plan)?;
    let answer = serde_json::to_string(&files).map_err(CliError::bad_input)?;
    write_exact(&(answer + "\n"))
}

impl TrialFiles {
    /// Makes the files for a trial of the recipe that is `asked` for, with its rows from the cache where a search has left them there.
    ///
    /// # Errors
    /// Bad input: a model or data that cannot be used, a plan of nothing, a cache that cannot be written to.
    fn of(tool: Tool, asked: &Recipe, plan: &TrialPlan) -> Result<Self, CliError> {
        let length = length_of(plan)?;
        let files = ModelFiles::resolve_for_transformers(&asked.model, &mut ()).map_err(CliError::bad_input)?;
        // The recipe's own seed decides which rows are held out, whatever the trial's is.
        let data = PreparedData::of_training(asked, &files).map_err(CliError::bad_input)?;
        let (mut recipe, train) = (asked.clone(), plan.train.as_ref());
        let seed_offset = train.map_or(0, |train| train.seed_offset);
        recipe.training.seed = recipe.training.seed.wrapping_add(seed_offset);
        let source = BatchSource::of_recipe(&data, &recipe).map_err(CliError::bad_input)?;
        let steps = source.steps(length);
        recipe.schedule = schedule_in_part(&recipe.schedule, steps, source.steps(recipe.training.length));
        let family = ModelFamily::read(&files.config)?;
        let architecture = family.architecture();
        let mut refused = refused(tool, &recipe, architecture);
        refused.extend(refused_family(tool, &recipe, &family));

        let model = std::path::absolute(&files.folder).map_err(CliError::bad_input)?;
        let limit = train.and_then(|train| train.evaluation_rows);
        let (rows, settings, held_out_windows) = rows_of(asked, &data, &files, limit)?;
        recipe.data = settings;
        recipe.model = model.to_string_lossy().into_owned();
        recipe.training.length = TrainingLength::Steps(steps);
        recipe.training.seed %= SEEDS;
        let counted = data.train().statistics();
        let known = Known {
            architecture,
            model_folder: Some(&model),
            data_format: Some(recipe.data.format),
            trained: Some(TrainedRows {
                rows: counted.documents,
                tokens: counted.tokens,
            }),
            ..Known::default()
        };
        let rendered = rendered(tool, &recipe, known).map_err(CliError::bad_input)?;
        let beside = rendered.files.iter().filter(|(name, _)| *name == DEEPSPEED_FILE);
        let beside = beside.cloned().collect();
        Ok(Self {
            config: started_with(tool, rendered)?,
            beside,
            train: rows.train,
            held_out: rows.held_out,
            steps,
            steps_per_epoch: source.steps_per_epoch(),
            epochs: source.epochs_of(steps),
            held_out_windows,
            trainer: recipe.trainer.name(),
            held_out_length: recipe.data.held_out_length.unwrap_or(recipe.batch.sequence_length),
            refused: refused.iter().map(ToString::to_string).collect(),
            model,
        })
    }
}

/// Rows of a trial, the data settings that name them, and how many of those held out are scored.
fn rows_of(
    recipe: &Recipe,
    data: &PreparedData,
    files: &ModelFiles,
    limit: Option<usize>,
) -> Result<(RowFiles, DataSettings, usize), CliError> {
    if recipe.trainer.is_sft() {
        let rows = cached_tokens(data)?;
        let settings = token_rows::settings(&recipe.data, std::slice::from_ref(&rows.train), &rows.held_out);
        let windows = evaluation_batches(data.held_out(), 1, limit).count();
        return Ok((rows, settings, windows));
    }
    let rows = cached_preferences(recipe, data, files)?;
    let (settings, all) = (preference_rows::settings(&recipe.data, &rows), data.held_out().len());
    Ok((rows, settings, limit.map_or(all, |limit| limit.min(all))))
}

/// Settings of `recipe` that a trial in `tool` would train otherwise, each with what to do. Rows, length and
/// evaluations are the trial's own, whatever the tool's file could say of them.
pub(in crate::cli) fn refused(tool: Tool, recipe: &Recipe, architecture: Option<&Architecture>) -> Vec<Warning> {
    let (title, optimizer) = (tool.title(), recipe.optimizer.kind);
    let mut refused = Vec::new();
    let mut refuse = |field, message| refused.push(Warning { field, message });
    if !recipe.data.train.sets().is_empty() {
        let what = format!("{title} does not mix sets as trials do; name the files of one set");
        refuse("data.train", what);
    }
    if !tool.takes_optimizer(optimizer) {
        let what = format!("{title} has no optimizer `{optimizer}`; search with another one");
        refuse("optimizer.kind", what);
    }
    refused.extend(refused_of_preferences(title, recipe));
    if tool == Tool::Unsloth {
        refused.extend(refused_of_unsloth(recipe));
    }
    let mut of_tokens = recipe.clone();
    let no_data = DataSettings::default();
    of_tokens.data = token_rows::settings(&no_data, &["train.rows".into()], Path::new("held_out.rows"));
    of_tokens.training.length = TrainingLength::Steps(1);
    let known = Known {
        architecture,
        ..Known::default()
    };
    match rendered(tool, &of_tokens, known) {
        Ok(Rendered { warnings, .. }) => {
            refused.extend(
                warnings
                    .into_iter()
                    .filter(|warning| !is_measured(warning.field, recipe)),
            );
        }
        Err(RenderError::Refused { field, reason, .. }) => refused.push(Warning {
            field,
            message: reason.to_owned(),
        }),
        Err(error @ RenderError::NoAdapter { .. }) => refused.push(Warning {
            field: "adapter",
            message: error.to_string(),
        }),
    }
    refused
}

/// Settings beside a trainer of preferences that the tool trains otherwise.
fn refused_of_preferences(title: &str, recipe: &Recipe) -> Vec<Warning> {
    let trainer = recipe.trainer;
    if trainer.is_sft() {
        return Vec::new();
    }
    let all = [
        (
            trainer == TrainerKind::Orpo && recipe.precision.is_quantized(),
            "precision",
            "raises frozen values of quantized models for ORPO, which trials share; set `precision` to fp32, bf16 or fp16",
        ),
        (
            !recipe.batch.sharding.is_none(),
            "batch.sharding",
            "has weights in parts under FSDP, and trials of preferences ask the model behind it too; set `sharding: none`",
        ),
        (
            !recipe.optimizer.offload.is_none(),
            "optimizer.offload",
            "has the model in DeepSpeed's engine, and trials of preferences ask the model behind it too; set `optimizer_offload: none`",
        ),
        (
            recipe.batch.packing,
            "batch.packing",
            "packs no rows of preferences; set `packing: false`",
        ),
        (
            recipe.data.chat_template.is_some(),
            "data.chat_template",
            "takes the chat template of the model's own tokenizer for preferences; put it there and remove `data.chat_template`",
        ),
        (
            recipe.batch.micro_batch < trainer.row().least_micro_batch,
            "batch.micro_batch",
            "compares each row of a micro-batch with the one before it in KTO; set `micro_batch` to 2 or more",
        ),
        (
            trainer.row().has_reference && recipe.adapter.is_none() && !recipe.reference.is_each_step(),
            "reference",
            "asks the reference of a model that trains whole before the first step, which trials do not; set `reference: each_step`",
        ),
    ];
    warnings_where(title, all).collect()
}

/// Settings that unsloth's script can say, and that trials do not have there.
fn refused_of_unsloth(recipe: &Recipe) -> impl Iterator<Item = Warning> {
    let all = [
        (
            recipe.batch.devices > 1,
            "batch.devices",
            "trains on one device in trials so far; set `devices: 1`",
        ),
        (
            recipe.batch.packing,
            "batch.packing",
            "packs rows where it finds that it can, and leaves packing out without an error elsewhere; set `packing: false`",
        ),
    ];
    warnings_where(Tool::Unsloth.title(), all)
}

/// Warnings of fields, each where it holds, about a tool with this title.
fn warnings_where<const N: usize>(
    title: &str,
    all: [(bool, &'static str, &'static str); N],
) -> impl Iterator<Item = Warning> {
    let so = all.into_iter().filter(|(is_so, ..)| *is_so);
    so.map(move |(_, field, what)| Warning {
        field,
        message: format!("{title} {what}"),
    })
}

/// The refusal of a name for some of the linear layers of a model whose family alone tells which they are, and of the model itself for
/// unsloth, which is told all layers by their names.
fn refused_family(tool: Tool, recipe: &Recipe, family: &ModelFamily) -> Option<Warning> {
    let (Some(adapter), ModelFamily::Other(other)) = (&recipe.adapter, family) else {
        return None;
    };
    if tool == Tool::Unsloth {
        let (field, message) = ("model", other.not_in_unsloth());
        return Some(Warning { field, message });
    }
    match adapter.target_modules {
        TargetModules::Preset(TargetPreset::AllLinear) | TargetModules::Named(_) => None,
        TargetModules::Preset(preset @ (TargetPreset::Attention | TargetPreset::Mlp)) => Some(Warning {
            field: "adapter.target_modules",
            message: other.refusal_of(preset.name(), &[]),
        }),
    }
}

/// Whether trials are measured with what the tool's file tells of a field: the trial or the model decides it; of
/// packing, the tool ends where it cannot keep documents apart; dropout is slower, which is measured; and the file that says
/// updates on the host lies beside the trial's.
fn is_measured(field: &str, recipe: &Recipe) -> bool {
    let is_of_trial = ["data.", "training."].iter().any(|group| field.starts_with(group));
    let is_beside = field == "optimizer.offload" && deepspeed_refuses(recipe).is_none();
    is_of_trial || is_beside || ["model", "adapter.dropout", "batch.packing"].contains(&field)
}

/// Length of the longest phase: the training, else the steps of the profile phase.
fn length_of(plan: &TrialPlan) -> Result<TrainingLength, CliError> {
    match (&plan.train, &plan.measure) {
        (Some(train), _) => Ok(train.length),
        (None, Some(measure)) => {
            let steps = measure.max_warmup_steps.saturating_add(measure.steps);
            Ok(TrainingLength::Steps(steps))
        }
        (None, None) => Err(CliError::bad(
            "the plan of the trial neither measures nor trains; give it `measure` or `train`",
        )),
    }
}

/// The tool's files for a recipe whose rows are token ids.
fn rendered(tool: Tool, recipe: &Recipe, known: Known<'_>) -> Result<Rendered, RenderError> {
    let metrics = Metrics::default();
    let input = ExportInput {
        recipe,
        study: STUDY,
        trial: TrialNumber(0),
        metrics: &metrics,
        reasons: &[],
        known,
    };
    tool.render(&input, Path::new("."))
}

/// Text of the file that the tool is started with.
fn started_with(tool: Tool, rendered: Rendered) -> Result<String, CliError> {
    let first = rendered.files.into_iter().next();
    let found = first.map(|(_, text)| text);
    found.ok_or_else(|| CliError::failed(anyhow::anyhow!("no file was made for {tool}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::import::parse_recipe;
    use peft_tune_core::recipe::{
        AdapterSettings, Checkpointing, OptimizerKind, OptimizerOffload, Precision, ReferencePass, Sharding,
        TrainingData, TrainingSet,
    };

    /// Fields that a changed recipe is refused for in TRL.
    fn refused_after(change: impl FnOnce(&mut Recipe)) -> Vec<&'static str> {
        let mut recipe = Recipe::new("model", DataSettings::default());
        change(&mut recipe);
        let refused = refused(Tool::Trl, &recipe, None);
        refused.iter().map(|warning| warning.field).collect()
    }

    #[test]
    fn what_the_file_cannot_say_is_refused_by_its_field() {
        assert_eq!(refused_after(|_| {}), Vec::<&str>::new());
        assert_eq!(
            refused_after(|recipe| recipe.optimizer.loraplus_ratio = Some(16.0)),
            ["optimizer.loraplus_ratio"]
        );
        let by_sgd = |recipe: &mut Recipe| {
            (recipe.optimizer.kind, recipe.optimizer.offload) = (OptimizerKind::Sgd, OptimizerOffload::Host);
        };
        assert_eq!(refused_after(by_sgd), ["optimizer.offload"]);
        let shared_out = |recipe: &mut Recipe| {
            (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full);
            recipe.precision = Precision::Int8;
        };
        assert_eq!(refused_after(shared_out), ["batch.sharding"]);
        assert_eq!(
            refused_after(|recipe| recipe.gradient_checkpointing = Checkpointing::EVERY_SECOND),
            ["gradient_checkpointing"]
        );
        let muon = refused_after(|recipe| recipe.optimizer.kind = OptimizerKind::Muon);
        assert_eq!(muon[0], "optimizer.kind");
    }

    #[test]
    fn what_trials_of_preferences_do_not_train_is_refused_by_its_field() {
        let after = |trainer, change: fn(&mut Recipe)| {
            refused_after(|recipe| {
                (recipe.trainer, recipe.batch.micro_batch) = (trainer, 2);
                change(recipe);
            })
        };
        for trainer in [TrainerKind::Dpo, TrainerKind::Kto, TrainerKind::Orpo] {
            assert_eq!(after(trainer, |_| {}), Vec::<&str>::new(), "{trainer}");
            let on_two = after(trainer, |recipe| recipe.batch.devices = 2);
            assert_eq!(on_two, Vec::<&str>::new(), "{trainer}");
            let shared_out = after(trainer, |recipe| {
                (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full);
            });
            assert_eq!(shared_out, ["batch.sharding"], "{trainer}");
            let packed = after(trainer, |recipe| recipe.batch.packing = true);
            assert_eq!(packed, ["batch.packing"], "{trainer}");
            let on_host = after(trainer, |recipe| recipe.optimizer.offload = OptimizerOffload::Host);
            assert_eq!(on_host[0], "optimizer.offload", "{trainer}");
        }
        let alone: fn(&mut Recipe) = |recipe| recipe.batch.micro_batch = 1;
        assert_eq!(after(TrainerKind::Kto, alone), ["batch.micro_batch"]);
        assert_eq!(after(TrainerKind::Dpo, alone), Vec::<&str>::new());
        let quantized: fn(&mut Recipe) = |recipe| recipe.precision = Precision::Nf4;
        assert_eq!(after(TrainerKind::Orpo, quantized), ["precision"]);
        assert_eq!(after(TrainerKind::Dpo, quantized), Vec::<&str>::new());
        let whole = after(TrainerKind::Dpo, |recipe| {
            (recipe.adapter, recipe.reference) = (None, ReferencePass::Precomputed);
        });
        assert_eq!(whole, ["reference"]);
    }

    #[test]
    fn one_module_is_an_expression_that_peft_finds_it_by() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        let one = TargetModules::Named(vec!["self_attn.q_proj".to_owned()]);
        recipe.adapter = Some(AdapterSettings {
            target_modules: one.clone(),
            ..AdapterSettings::default()
        });
        let rendered = rendered(Tool::Trl, &recipe, Known::default()).unwrap();
        let text = started_with(Tool::Trl, rendered).unwrap();
        let values: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            values["lora_target_modules"],
            serde_json::json!([r"(?:.*\.)?self_attn\.q_proj"])
        );
        let again = parse_recipe(Path::new("trl_sft.yaml"), &text, Some(Tool::Trl)).unwrap();
        assert_eq!(again.recipe.adapter.unwrap().target_modules, one);
    }

    #[test]
    fn what_a_trial_decides_by_itself_is_not_refused() {
        let on_several = |recipe: &mut Recipe| {
            (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full);
        };
        assert_eq!(refused_after(on_several), Vec::<&str>::new());
        let on_host = |recipe: &mut Recipe| recipe.optimizer.offload = OptimizerOffload::Host;
        assert_eq!(refused_after(on_host), Vec::<&str>::new());
        let own = |recipe: &mut Recipe| {
            recipe.training.length = TrainingLength::Tokens(1000);
            recipe.training.evaluation_rows = Some(3);
            recipe.data.columns = [("text".to_owned(), "body".to_owned())].into();
            recipe.batch.packing = true;
        };
        assert_eq!(refused_after(own), Vec::<&str>::new());
        let mixed = |recipe: &mut Recipe| {
            let set = |file: &str| TrainingSet {
                files: vec![file.into()],
                weight: 0.5,
            };
            recipe.data.train = TrainingData::Mixture(vec![set("a.jsonl"), set("b.jsonl")]);
        };
        assert_eq!(refused_after(mixed), ["data.train"]);
    }
}
