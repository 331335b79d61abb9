//! A baseline read from a config that people have: of TRL, axolotl, LLaMA-Factory, torchtune or PEFT.
//!
//! Keys are found by the names that the table of settings has for other tools, at any depth. What it has no name for is
//! passed over and told.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::CliError;
use super::output::tell;
use peft_tune_core::bounded::{SETTINGS_BYTES, read_text};
use peft_tune_core::recipe::OptimizerKind;
use peft_tune_core::recipe::settings::{SettingRow, setting, setting_called_elsewhere};
use peft_tune_core::study::{ParamValue, Params};

/// Keys of whole sections whose names mean something else elsewhere, and keys that say nothing of a training's setting.
const PASSED_OVER: [&str; 3] = ["dataset", "datasets", "eval"];

/// The settings that the file at `path` says.
///
/// # Errors
/// Bad input where the file cannot be read or is no YAML or JSON, or where it says no setting at all.
pub(super) fn read(path: &Path) -> Result<Params, CliError> {
    let bad = |message: String| CliError::bad_input(anyhow::anyhow!("{}: {message}", path.display()));
    let text = read_text(path, SETTINGS_BYTES).map_err(|error| bad(format!("cannot read it: {error}")))?;
    let value: Value = serde_saphyr::from_str(&text).map_err(|error| bad(format!("it is no YAML or JSON: {error}")))?;
    let mut found = BTreeMap::new();
    collect(&value, &mut found);
    let (mut params, mut passed) = (Params::new(), Vec::new());
    for (key, value) in &found {
        match param_of(key, value) {
            Some((name, value)) => drop(params.insert(name.to_owned(), value)),
            None => passed.push(key.as_str()),
        }
    }
    if params.is_empty() {
        return Err(bad(
            "none of its keys is a setting: give a config of TRL, axolotl, LLaMA-Factory, torchtune or PEFT".into(),
        ));
    }
    if params.contains_key("alpha") {
        params.remove("alpha_ratio");
    }
    let shown: Vec<String> = params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    tell(format_args!("the baseline of {}: {}", path.display(), shown.join(", ")));
    if !passed.is_empty() {
        tell(format_args!(
            "passed over, as no setting is called so: {}",
            passed.join(", ")
        ));
    }
    Ok(params)
}

/// The keys of a file with plain values or lists, at any depth; the outermost of a name counts.
fn collect(value: &Value, found: &mut BTreeMap<String, Value>) {
    let Value::Object(map) = value else { return };
    let is_section = |value: &Value| value.is_object();
    for (key, value) in map.iter().filter(|(_, value)| !is_section(value)) {
        found.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let sections = map.iter().filter(|(key, _)| !PASSED_OVER.contains(&key.as_str()));
    for (_, section) in sections.filter(|(_, value)| is_section(value)) {
        collect(section, found);
    }
}

/// The setting that a key and value of another tool's file say.
fn param_of(key: &str, value: &Value) -> Option<(&'static str, ParamValue)> {
    let row = setting(key).or_else(|| setting_called_elsewhere(key))?;
    let value = match value {
        Value::Bool(flag) => ParamValue::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => ParamValue::Int(whole),
            None => ParamValue::Float(number.as_f64()?),
        },
        Value::String(text) => text_param(row, text)?,
        Value::Array(items) => {
            let names: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            ParamValue::list(names?)
        }
        Value::Null | Value::Object(_) => return None,
    };
    let value = as_legal(row, value);
    row.legal.allows(&value).then_some((row.name, value))
}

fn text_param(row: &SettingRow, text: &str) -> Option<ParamValue> {
    // YAML reads 2e-4 as text in some tools' files.
    if let Ok(number) = text.parse::<f64>() {
        return Some(ParamValue::Float(number));
    }
    Some(match row.name {
        "optimizer" => OptimizerKind::called_elsewhere(text)?.name().into(),
        "target_modules" if text == "all" => "all-linear".into(),
        "precision" => match text {
            "bfloat16" | "bf16" | "auto" => "bf16".into(),
            "float16" | "fp16" => "fp16".into(),
            "float32" | "fp32" => "fp32".into(),
            other => other.into(),
        },
        _ => text.into(),
    })
}

/// The value as the setting writes it: checkpointing that is switched on is `full`, whole numbers are no fractions.
fn as_legal(row: &SettingRow, value: ParamValue) -> ParamValue {
    match (row.name, &value) {
        ("gradient_checkpointing", ParamValue::Bool(on)) => if *on { "full" } else { "none" }.into(),
        (_, ParamValue::Float(number)) if !row.legal.allows(&value) && number.fract() == 0.0 => {
            ParamValue::Int(*number as i64)
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Params, CliError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    fn shown(text: &str) -> String {
        let params = of(text).unwrap();
        let parts: Vec<String> = params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        parts.join(" ")
    }

    #[test]
    fn configs_of_other_tools_say_settings() {
        let trl = "model_name_or_path: m\nlora_r: 64\nlora_alpha: 16\nlearning_rate: 2e-4\noptim: adamw_torch\n\
                   per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\ngradient_checkpointing: true\n";
        let said = shown(trl);
        for part in [
            "rank=64",
            "alpha=16",
            "learning_rate=2e-4",
            "optimizer=adamw",
            "micro_batch=2",
            "gradient_checkpointing=full",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let peft = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}"#;
        let said = shown(peft);
        for part in ["rank=8", "alpha=32", "dropout=0.05", "target_modules="] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn a_file_without_settings_is_refused_with_its_name() {
        for text in ["a: 1\n", "[1, 2]\n", "a: [", "\u{0}"] {
            let error = of(text).unwrap_err();
            assert!(format!("{error:?}").contains("config"), "{error:?}");
        }
    }
}
