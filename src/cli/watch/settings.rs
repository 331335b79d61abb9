//! Settings of the watched training, and what they make one expect. What cannot be read or predicted keeps nothing from running.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::args::Args;
use super::command_words::{CommandWords, Source};
use crate::cli::CliError;
use crate::cli::machine::record::gpu_models;
use crate::cli::plan::{Expectation, device_of, expectation};
use crate::tools::Tool;
use crate::tools::import::{Imported, StackFileError, parse_changed, parse_recipe, text_of};
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{HOST, StackDevice};

/// The watched training as far as it is known before it runs.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// File, script or command that the settings are read from.
    pub file: Option<PathBuf>,
    pub expectation: Option<Expectation>,
    /// Names of the settings that the file says.
    pub said: BTreeSet<&'static str>,
    /// Devices that share the work, where a person, the launcher or the file tells them.
    pub devices: Option<u64>,
    /// Folder that the training writes to.
    pub output: Option<PathBuf>,
    /// What is not known, and why.
    pub unknown: Vec<String>,
}

/// A source's settings, and the path that messages have for it.
struct Read {
    path: PathBuf,
    imported: Imported,
    output: Option<PathBuf>,
}

impl Settings {
    /// Reads and predicts the training that a command starts.
    ///
    /// # Errors
    /// Bad input of the person: a file, a tool or a device that is named and cannot be used.
    pub(super) fn of(args: &Args) -> Result<Self, CliError> {
        let words: Vec<String> = args
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let told = CommandWords::of(&words, Path::is_file);
        let asked = args.stack.as_deref().map(Tool::from_name).transpose();
        let asked = asked.map_err(CliError::bad_input)?.or(told.tool);
        let mut unknown = Vec::new();
        let device = device(args, &mut unknown)?;
        let mut settings = Self {
            devices: args.devices.or(told.devices),
            output: told.output.clone(),
            unknown,
            ..Self::default()
        };
        let read = match (&args.config, &told.source) {
            (Some(path), _) => Some(of_file(path, &Map::new(), asked).map_err(CliError::bad_input)?),
            (None, Some(source)) => match of_source(source, asked) {
                Ok(read) => Some(read),
                Err(reason) => {
                    settings.unknown.push(format!("nothing is predicted: {reason}"));
                    None
                }
            },
            (None, None) => {
                settings
                    .unknown
                    .push("nothing is predicted: the command names no settings file; --config names one".to_owned());
                None
            }
        };
        let Some(Read { path, imported, output }) = read else {
            return Ok(settings);
        };
        settings.output = settings.output.or(output);
        if device.is_none() && args.device.is_none() {
            settings.unknown.push(
                "no speed is predicted: the driver names no GPU that is known here; --device names one, or `cpu`"
                    .to_owned(),
            );
        }
        settings.unknown.extend(imported.unread_note());
        settings.said.clone_from(&imported.said);
        match expectation(&path, imported, args.model.clone(), settings.devices, device) {
            Ok(expectation) => {
                // One is also what is taken where the file says nothing.
                let in_file = Some(expectation.setting.devices).filter(|devices| *devices > 1);
                settings.devices = settings.devices.or(in_file);
                settings.unknown.extend(expectation.notes.iter().cloned());
                settings.expectation = Some(expectation);
            }
            Err(error) => settings.unknown.push(format!("nothing is predicted: {error}")),
        }
        settings.file = Some(path);
        Ok(settings)
    }
}

/// The device to predict for: the one that is named, else the first GPU of the driver. This machine's processor may not be measured,
/// which keeps nothing from running.
fn device(args: &Args, unknown: &mut Vec<String>) -> Result<Option<StackDevice>, CliError> {
    if let Some(name) = &args.device {
        return match device_of(name, &args.database) {
            Err(error) if name == HOST => {
                unknown.push(format!("no speed is predicted: {error}"));
                Ok(None)
            }
            device => device.map(Some),
        };
    }
    let models = gpu_models();
    let sheet = models.iter().find_map(|model| predict::device_of_driver(model));
    Ok(sheet.map(|sheet| StackDevice { sheet }))
}

/// Reads a source; of words that are no settings, the script that they start.
fn of_source(source: &Source, asked: Option<Tool>) -> Result<Read, String> {
    let said = |error: StackFileError| error.to_string();
    match source {
        Source::File { path, changes } => of_file(path, changes, asked).map_err(said),
        Source::Script(path) => of_file(path, &Map::new(), asked).map_err(said),
        Source::Words { line, script } => {
            let path = PathBuf::from("the command");
            match (parse_recipe(&path, line, asked), script) {
                (Ok(imported), _) => Ok(Read {
                    path,
                    imported,
                    output: None,
                }),
                (Err(_), Some(script)) => of_file(script, &Map::new(), asked).map_err(said),
                (Err(error), None) => Err(said(error)),
            }
        }
    }
}

/// Reads a file with the keys that the command changes.
fn of_file(path: &Path, changes: &Map<String, Value>, asked: Option<Tool>) -> Result<Read, StackFileError> {
    let text = text_of(path)?;
    let keys = keys_of(path, &text);
    let output = keys.as_ref().and_then(|keys| keys.get("output_dir")?.as_str());
    Ok(Read {
        path: path.to_owned(),
        imported: parse_changed(path, &text, changes, asked)?,
        output: output.map(PathBuf::from),
    })
}

/// The keys of the text of a file of YAML or JSON; `None` of anything else.
fn keys_of(path: &Path, text: &str) -> Option<Map<String, Value>> {
    let is_settings = path
        .extension()
        .is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
    if !is_settings {
        return None;
    }
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => serde_saphyr::from_str(text).ok()?,
    };
    match value {
        Value::Object(keys) => Some(keys),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AXOLOTL: &str = "base_model: ./model\nadapter: lora\nlora_r: 16\nlora_target_linear: true\nmicro_batch_size: 2\n\
                           sequence_len: 512\noutput_dir: out\n";

    #[test]
    fn words_behind_a_file_change_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.yaml");
        std::fs::write(&path, AXOLOTL).unwrap();
        let changes = json!({"micro_batch_size": 4, "lora_r": 8});
        let Value::Object(changes) = changes else { panic!() };
        let read = of_file(&path, &changes, None).unwrap();
        assert_eq!(read.imported.recipe.batch.micro_batch, 4);
        assert_eq!(read.output, Some("out".into()));
        let read = of_file(&path, &Map::new(), None).unwrap();
        assert_eq!(read.imported.recipe.batch.micro_batch, 2);
    }

    #[test]
    fn words_that_are_no_settings_give_way_to_their_script() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "print('no training')\n").unwrap();
        let source = Source::Words {
            line: "python train.py --fast".to_owned(),
            script: Some(script),
        };
        let error = of_source(&source, None).err().unwrap();
        assert!(error.contains("train.py"), "{error}");
        let source = Source::Words {
            line: "trl sft --model_name_or_path m --use_peft --lora_r 4".to_owned(),
            script: None,
        };
        assert_eq!(of_source(&source, None).ok().unwrap().imported.tool, Tool::Trl);
    }
}
