//! `peft-tune trial-files`: files that a trial in another stack trains from. A worker of that stack starts it.
//!
//! A trial in TRL is what `export` writes for it: the exporter makes the file, and only rows, length and seed are the
//! trial's. The rows lie in the cache as token ids and labels, an Arrow stream for each split, which
//! `datasets.Dataset.from_file` maps into memory. Their names come from their tokens, so that trials on the same tokens
//! share them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::saved_dataset::write_rows;
use super::token_row::TokenRow;
use super::token_rows;
use crate::cli::CliError;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::terminal::output::write_exact;
use crate::tools::Tool;
use crate::tools::export::{DEEPSPEED_FILE, ExportInput, Known, RenderError, Rendered, TrainedRows, Warning};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::hexadecimal;
use peft_tune_core::predict::stack::deepspeed_refuses;
use peft_tune_core::recipe::{DataFormat, DataSettings, Recipe, TargetModules, TargetPreset, TrainingLength};
use peft_tune_core::study::{Metrics, TrialNumber, TrialPlan};
use peft_tune_core::whole_file::{WholeFile, make_folder};
use peft_tune_engine::data::{BatchSource, PreparedData, cache_folder, evaluation_batches, make_room};
use peft_tune_engine::hub::ModelFiles;

/// Version of what the files of rows hold, which is a part of their names.
const LAYOUT: u32 = 1;
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
    /// File of the windows in which held-out rows are scored.
    held_out: PathBuf,
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
    if tool != Tool::Trl {
        let title = tool.title();
        return Err(CliError::bad(format!("no worker trains in {title}; ask for `trl`")));
    }
    let files = TrialFiles::of(tool, &request.recipe, &request.plan)?;
    let answer = serde_json::to_string(&files).map_err(CliError::bad_input)?;
    write_exact(&(answer + "\n"))
}

impl TrialFiles {
    /// Makes the files for a trial of `recipe`, with its rows from the cache where a search has left them there.
    ///
    /// # Errors
    /// Bad input: a model or data that cannot be used, a plan of nothing, a cache that cannot be written to.
    fn of(tool: Tool, recipe: &Recipe, plan: &TrialPlan) -> Result<Self, CliError> {
        let length = length_of(plan)?;
        let files = ModelFiles::resolve_weights(&recipe.model, &mut ()).map_err(CliError::bad_input)?;
        // The recipe's own seed decides which rows are held out, whatever the trial's is.
        let data = PreparedData::of_recipe(recipe, &files).map_err(CliError::bad_input)?;
        let (mut recipe, train) = (recipe.clone(), plan.train.as_ref());
        let seed_offset = train.map_or(0, |train| train.seed_offset);
        recipe.training.seed = recipe.training.seed.wrapping_add(seed_offset);
        let source = BatchSource::of_recipe(&data, &recipe).map_err(CliError::bad_input)?;
        let steps = source.steps(length);
        let family = ModelFamily::read(&files.config)?;
        let architecture = family.architecture();
        let mut refused = refused(tool, &recipe, architecture);
        refused.extend(unknown_layers(&recipe, &family));

        let model = std::path::absolute(&files.folder).map_err(CliError::bad_input)?;
        let rows = CachedRows::of(&data)?;
        recipe.model = model.to_string_lossy().into_owned();
        recipe.data = token_rows::settings(&recipe.data, std::slice::from_ref(&rows.train), &rows.held_out);
        recipe.training.length = TrainingLength::Steps(steps);
        recipe.training.seed %= SEEDS;
        let counted = data.train().statistics();
        let known = Known {
            architecture,
            model_folder: Some(&model),
            data_format: Some(DataFormat::Tokenized),
            trained: Some(TrainedRows {
                rows: counted.documents,
                tokens: counted.tokens,
            }),
            ..Known::default()
        };
        let rendered = rendered(tool, &recipe, known).map_err(CliError::bad_input)?;
        let beside = rendered.files.iter().filter(|(name, _)| *name == DEEPSPEED_FILE);
        let beside = beside.cloned().collect();
        let limit = train.and_then(|train| train.evaluation_rows);
        Ok(Self {
            config: started_with(tool, rendered)?,
            beside,
            train: rows.train,
            held_out: rows.held_out,
            steps,
            steps_per_epoch: source.steps_per_epoch(),
            epochs: source.epochs_of(steps),
            held_out_windows: evaluation_batches(data.held_out(), 1, limit).count(),
            refused: refused.iter().map(ToString::to_string).collect(),
            model,
        })
    }
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

/// The refusal of a name for some of the linear layers of a model whose family alone tells which they are.
fn unknown_layers(recipe: &Recipe, family: &ModelFamily) -> Option<Warning> {
    let (Some(adapter), ModelFamily::Other(other)) = (&recipe.adapter, family) else {
        return None;
    };
    match adapter.target_modules {
        TargetModules::Preset(TargetPreset::AllLinear) | TargetModules::Named(_) => None,
        TargetModules::Preset(preset @ (TargetPreset::Attention | TargetPreset::Mlp)) => Some(Warning {
            field: "adapter.target_modules",
            message: other.refusal_of(preset.name(), &[]),
        }),
    }
}

/// Whether trials are measured with what the tool's file tells of a field: the trial or the model decides it; of
/// packing, the tool ends where it cannot keep documents apart; and the file that says updates on the host lies beside the
/// trial's.
fn is_measured(field: &str, recipe: &Recipe) -> bool {
    let is_of_trial = ["data.", "training."].iter().any(|group| field.starts_with(group));
    let is_beside = field == "optimizer.offload" && deepspeed_refuses(recipe).is_none();
    is_of_trial || is_beside || ["model", "batch.packing"].contains(&field)
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
    let mut files = rendered.files.into_iter();
    let found = files.find_map(|(name, text)| (name == tool.file_name()).then_some(text));
    found.ok_or_else(|| CliError::failed(anyhow::anyhow!("{} was not made for {tool}", tool.file_name())))
}

/// Rows of a trial in the cache.
struct CachedRows {
    train: PathBuf,
    held_out: PathBuf,
}

impl CachedRows {
    /// Finds the rows of `data`, or writes them.
    ///
    /// # Errors
    /// Bad input: there is no cache, or it cannot be written to.
    fn of(data: &PreparedData) -> Result<Self, CliError> {
        let folder = cache_folder().ok_or_else(|| {
            CliError::bad("there is no folder for the rows of the trial; set HOME, or name one as PEFT_TUNE_CACHE")
        })?;
        Self::in_folder(&folder, data).map_err(|error| {
            let folder = folder.display();
            CliError::bad(format!(
                "cannot write the rows of the trial into {folder}: {error}; free some space, or name a folder on \
                 another disk as PEFT_TUNE_CACHE"
            ))
        })
    }

    fn in_folder(folder: &Path, data: &PreparedData) -> io::Result<Self> {
        make_folder(folder)?;
        let folder = std::path::absolute(folder)?;
        // Held-out windows are as long as a row may be, which documents do not tell.
        let (tokens, length) = (hexadecimal(&data.fingerprint()[..16]), data.sequence_length());
        let path = |split: &str| folder.join(format!("{tokens}-{length}-{LAYOUT}.{split}.rows"));
        let rows = Self {
            train: path("train"),
            held_out: path("held_out"),
        };
        let documents = data.train();
        let train_is_new = keep(&rows.train, token_rows::trained(documents, 0..documents.len()))?;
        let held_out_is_new = keep(&rows.held_out, token_rows::scored(data.held_out()))?;
        if train_is_new || held_out_is_new {
            make_room(&folder, &rows.train);
        }
        Ok(rows)
    }
}

/// Writes a file of rows that is not there yet. Returns whether it was not.
fn keep(path: &Path, rows: impl Iterator<Item = TokenRow>) -> io::Result<bool> {
    if let Ok(file) = File::open(path) {
        // Files that were not used for long make room for others. Who may not write keeps them no younger.
        let _ = file.set_modified(SystemTime::now());
        return Ok(false);
    }
    // Another worker may write the same at once: the last file stays, and readers keep the one that they have mapped.
    let mut file = WholeFile::create(path, true)?;
    write_rows(&mut file, rows).map_err(io::Error::other)?;
    file.finish()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::import::parse_recipe;
    use peft_tune_core::recipe::{
        AdapterSettings, Checkpointing, OptimizerKind, OptimizerOffload, Precision, Sharding, TrainingData, TrainingSet,
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
