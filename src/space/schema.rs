//! JSON Schemas of the study file and the recipe file, for editors that complete and check YAML.

use serde_json::{Map, Value, json};

use super::StudyFile;
use peft_tune_core::quantity::COUNT_PATTERN;
use peft_tune_core::recipe::settings::{FloatRange, Legal, SettingRow, settings};
use peft_tune_core::recipe::{Checkpointing, PrecisionSchedule, Recipe, TargetPreset};

/// The JSON Schema (draft 2020-12) of a study file.
pub fn study_schema() -> Value {
    let mut schema = Value::from(schemars::schema_for!(StudyFile));
    let parameters: Map<String, Value> = settings()
        .map(|row| (row.name.to_owned(), parameter_schema(row)))
        .collect();
    let any_name = json!({"$ref": "#/$defs/Parameter"});
    schema["properties"]["space"] = json!({
        "description": "The parameters: a value fixes one, a list or a range makes it searched.",
        "type": "object",
    });
    // A command may have any parameters, so only the other backends refuse unknown names.
    schema["if"] = json!({
        "properties": {"backend": {"type": "object", "required": ["command"]}},
        "required": ["backend"],
    });
    schema["then"] = json!({"properties": {"space": {"additionalProperties": any_name}}});
    schema["else"] = json!({
        "properties": {"space": {"properties": parameters, "additionalProperties": false}},
        "required": ["model", "data"],
    });
    schema
}

/// The JSON Schema (draft 2020-12) of a recipe file.
pub fn recipe_schema() -> Value {
    let mut schema = Value::from(schemars::schema_for!(Recipe));
    schema["title"] = "peft-tune recipe file".into();
    schema
}

/// One parameter: a value, choices, a range where it is a number, or keys with a condition.
fn parameter_schema(row: &SettingRow) -> Value {
    let value = value_schema(row);
    let choices = json!({"type": "array", "items": value, "minItems": 1, "uniqueItems": true});
    let when = json!({"$ref": "#/$defs/MapOfValue"});
    let mut forms = vec![
        value.clone(),
        choices.clone(),
        json!({
            "type": "object",
            "properties": {"choices": choices, "when": when},
            "required": ["choices"],
            "additionalProperties": false,
        }),
        json!({
            "type": "object",
            "properties": {"value": value, "when": when},
            "required": ["value"],
            "additionalProperties": false,
        }),
    ];
    if row.legal.is_numeric() {
        let number = number_schema(row);
        let step = or_count(row, json!({"type": "number", "exclusiveMinimum": 0}));
        forms.push(json!({
            "type": "object",
            "properties": {
                "low": number,
                "high": number,
                "scale": {"enum": ["linear", "log"], "default": "linear"},
                "step": step,
                "when": when,
            },
            "required": ["low", "high"],
            "additionalProperties": false,
        }));
    }
    json!({"description": row.about, "anyOf": forms})
}

fn value_schema(row: &SettingRow) -> Value {
    match &row.legal {
        Legal::Int { .. } | Legal::Float(_) => number_schema(row),
        Legal::FloatOrNone(_) => json!({"anyOf": [number_schema(row), {"enum": ["none", null]}]}),
        Legal::Bool => json!({"type": "boolean"}),
        Legal::Choice(names) => json!({"enum": names}),
        Legal::Checkpointing => json!({"type": "string", "pattern": Checkpointing::PATTERN}),
        Legal::PrecisionSchedule => json!({"type": "string", "pattern": PrecisionSchedule::PATTERN}),
        Legal::Targets => json!({
            "anyOf": [
                {"enum": TargetPreset::NAMES},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ],
        }),
    }
}

fn number_schema(row: &SettingRow) -> Value {
    let number = match &row.legal {
        Legal::Int { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
        Legal::Float(range) | Legal::FloatOrNone(range) => range_schema(range),
        Legal::Bool | Legal::Choice(_) | Legal::Checkpointing | Legal::PrecisionSchedule | Legal::Targets => {
            json!({"type": "number"})
        }
    };
    or_count(row, number)
}

/// A number, or a count such as `2k` where the setting counts something.
fn or_count(row: &SettingRow, number: Value) -> Value {
    match row.is_count() {
        true => json!({"anyOf": [number, {"type": "string", "pattern": COUNT_PATTERN}]}),
        false => number,
    }
}

fn range_schema(range: &FloatRange) -> Value {
    let mut schema = json!({"type": "number"});
    let low = if range.low_included {
        "minimum"
    } else {
        "exclusiveMinimum"
    };
    schema[low] = range.low.into();
    if range.high.is_finite() {
        let high = if range.high_included {
            "maximum"
        } else {
            "exclusiveMaximum"
        };
        schema[high] = range.high.into();
    }
    schema
}
