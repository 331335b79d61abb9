//! `peft-tune schema`: the JSON Schema of the YAML files and of the worker's protocol, and the tables of names.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::CliError;
use super::output::write_result;
use crate::space::{recipe_schema, study_schema};
use crate::worker::protocol_schema;
use peft_tune_core::architecture::Family;
use peft_tune_core::recipe::settings::{SettingRow, Tool, settings};
use peft_tune_core::recipe::{
    AdapterInit, Checkpointing, DataSettings, OptimizerKind, Precision, Recipe, ScheduleKind, TargetPreset,
};

/// Print the JSON Schema of a study or recipe file, for editors that complete YAML, or of the worker's protocol
#[derive(Debug, clap::Args)]
pub(super) struct Args {
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
pub(super) fn run(args: Args) -> Result<(), CliError> {
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
    Ok(json!({
        "optimizers": by_name(OptimizerKind::ALL.map(OptimizerKind::row))?,
        "precisions": by_name(Precision::ALL.map(Precision::row))?,
        "schedules": by_name(ScheduleKind::ALL.map(ScheduleKind::row))?,
        "checkpointing": by_name(Checkpointing::ROWS)?,
        "target_presets": by_name(TargetPreset::ALL.map(TargetPreset::row))?,
        "inits": by_name(AdapterInit::ALL.map(AdapterInit::row))?,
        "settings": names_of_settings(),
        "families": by_name(Family::all().map(Family::row))?,
    }))
}

/// The settings with their defaults, and the keys that they have elsewhere.
fn names_of_settings() -> Value {
    const TOOLS: [(&str, Tool); 6] = [
        ("peft", Tool::Peft),
        ("trl", Tool::Trl),
        ("axolotl", Tool::Axolotl),
        ("llamafactory", Tool::LlamaFactory),
        ("torchtune", Tool::Torchtune),
        ("unsloth", Tool::Unsloth),
    ];
    let recipe = Recipe::new("", DataSettings::default());
    let one = |row: &SettingRow| {
        let keys = TOOLS.map(|(name, tool)| (name.to_owned(), json!(row.name_at(tool))));
        json!({"about": row.about, "default": (row.get)(&recipe), "keys": Map::from_iter(keys)})
    };
    Value::Object(settings().map(|row| (row.name.to_owned(), one(row))).collect())
}

/// The rows of a table, each under the name that it has.
fn by_name(rows: impl IntoIterator<Item = impl Serialize>) -> serde_json::Result<Value> {
    let mut table = Map::new();
    for row in rows {
        let mut row = serde_json::to_value(row)?;
        let name = row.as_object_mut().and_then(|row| row.shift_remove("name"));
        if let Some(Value::String(name)) = name {
            table.insert(name, row);
        }
    }
    Ok(Value::Object(table))
}
