//! `peft-tune schema`: the JSON Schema of the YAML files and of the worker's protocol, and the tables of names.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cli::CliError;
use crate::cli::terminal::output::write_result;
use crate::space::{recipe_schema, study_schema};
use crate::tools::{Tool, ToolKeys, Word};
use crate::worker::protocol_schema;
use peft_tune_core::architecture::Family;
use peft_tune_core::recipe::settings::{SettingRow, settings};
use peft_tune_core::recipe::{
    AdapterInit, Checkpointing, DataSettings, OptimizerKind, Precision, Recipe, ScheduleKind, TargetPreset,
};

/// Print the JSON Schema of a study or recipe file, for editors that complete YAML, or of the worker's protocol
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Which schema to print.
    #[arg(value_enum, default_value_t = File::Space)]
    file: File,
}

/// What has a schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum File {
    /// A study file, as `search` reads it.
    Space,
    /// A recipe file, as `train`, `profile` and `export --format recipe` know it.
    Recipe,
    /// What a search and its worker processes say to each other, a JSON object a line.
    Protocol,
    /// No schema but the tables of optimizers, precisions, schedules, model families and all else that has a name, with the
    /// names at other tools.
    Names,
}

/// Prints the schema.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let schema = match args.file {
        File::Space => study_schema(),
        File::Recipe => recipe_schema(),
        File::Protocol => protocol_schema().to_value(),
        File::Names => names().map_err(CliError::failed)?,
    };
    write_result(&(serde_json::to_string_pretty(&schema).map_err(CliError::failed)? + "\n"))
}

/// All tables, each with its rows by name.
fn names() -> serde_json::Result<Value> {
    let schedules = ScheduleKind::ALL.map(|kind| {
        let keys = keys_of(|keys| (keys.schedule)(kind));
        let behind = keys_of(|keys| (keys.schedule_after_warmup)(kind));
        let differs = behind
            .as_object()
            .is_some_and(|tools| tools.values().any(Value::is_object));
        let behind = if differs { behind } else { Value::Null };
        (kind.row(), vec![("keys", keys), ("keys_with_warmup", behind)])
    });
    let optimizers = OptimizerKind::ALL.map(|kind| with_keys(kind.row(), |keys| (keys.optimizer)(kind)));
    let precisions = Precision::ALL.map(|kind| with_keys(kind.row(), |keys| (keys.precision)(kind)));
    let checkpointing = Checkpointing::FORMS.map(|form| with_keys(form.row(), |keys| (keys.checkpointing)(form)));
    let presets = TargetPreset::ALL.map(|kind| with_keys(kind.row(), |keys| (keys.preset)(kind)));
    let inits = AdapterInit::ALL.map(|kind| with_keys(kind.row(), |keys| (keys.init)(kind)));
    Ok(json!({
        "optimizers": by_name(optimizers)?,
        "precisions": by_name(precisions)?,
        "schedules": by_name(schedules)?,
        "checkpointing": by_name(checkpointing)?,
        "target_presets": by_name(presets)?,
        "inits": by_name(inits)?,
        "settings": names_of_settings(),
        "families": by_name(Family::all().map(|family| (family.row(), Tool::names_of_family(family))))?,
    }))
}

/// What tools call something, by the tool; `null` where one has no such thing. One whose file is an adapter's alone is left out then.
fn keys_of(words: impl Fn(&ToolKeys) -> Option<Vec<Word>>) -> Value {
    let of = |tool: &Tool| {
        let words = words(tool.keys()).map(|words| words.into_iter().map(|(key, value)| (key.to_owned(), value)));
        let words = words.map(|words| Value::Object(words.collect()));
        let is_left_out = words.is_none() && !tool.says_training();
        (!is_left_out).then(|| (tool.name().to_owned(), json!(words)))
    };
    Value::Object(Tool::ALL.iter().filter_map(of).collect())
}

/// A row with what tools call it.
fn with_keys<R>(row: R, words: impl Fn(&ToolKeys) -> Option<Vec<Word>>) -> (R, Vec<(&'static str, Value)>) {
    (row, vec![("keys", keys_of(words))])
}

/// The settings with their defaults, and the keys that they have elsewhere.
fn names_of_settings() -> Value {
    let recipe = Recipe::new("", DataSettings::default());
    let one = |row: &SettingRow| {
        let keys = Tool::ALL
            .iter()
            .map(|tool| (tool.name().to_owned(), json!(tool.key_of(row.name))));
        json!({"about": row.about, "default": (row.get)(&recipe), "keys": Map::from_iter(keys)})
    };
    Value::Object(settings().map(|row| (row.name.to_owned(), one(row))).collect())
}

/// The fields of a row that say how it is used, behind what tools call it.
const USES: [&str; 2] = ["arguments", "chat"];

/// The rows of a table, each under the name that it has, with what stands beside it at tools.
fn by_name(rows: impl IntoIterator<Item = (impl Serialize, Vec<(&'static str, Value)>)>) -> serde_json::Result<Value> {
    let mut table = Map::new();
    for (row, more) in rows {
        let mut row = serde_json::to_value(row)?;
        let Some(fields) = row.as_object_mut() else { continue };
        let Some(Value::String(name)) = fields.shift_remove("name") else {
            continue;
        };
        let uses: Vec<_> = USES
            .into_iter()
            .filter_map(|key| Some((key, fields.shift_remove(key)?)))
            .collect();
        fields.extend(more.into_iter().chain(uses).map(|(key, value)| (key.to_owned(), value)));
        table.insert(name, row);
    }
    Ok(Value::Object(table))
}
