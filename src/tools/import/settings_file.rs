//! A settings file of any of the tools: its text, its keys, and which tool's it is.

use std::path::Path;

use serde_json::{Map, Value};

use super::{FileKind, Keys, StackFileError, script};
use crate::tools::Tool;

/// A file that is larger is none that a person wrote.
const LARGEST: u64 = 4 << 20;

/// The text of a settings file.
pub(in crate::tools) fn text_of(path: &Path) -> Result<String, StackFileError> {
    let failed = |source| StackFileError::Read {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > LARGEST {
        return Err(StackFileError::TooLarge { path: path.to_owned() });
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The tool that trains from a file: what its keys tell, or the one that is asked for.
pub(in crate::tools) fn tool_of(keys: &Keys<'_>, text: &str, asked: Option<Tool>) -> Result<Tool, StackFileError> {
    let asked = asked.or_else(|| script_of(keys.path(), text));
    told_by(keys).map_or_else(
        || {
            asked.ok_or_else(|| StackFileError::UnknownTool {
                path: keys.path().to_owned(),
                known: titles_of_trainings(),
            })
        },
        |tool| Ok(asked_for(asked, tool)),
    )
}

/// The tool whose words a file has. An adapter's are those of the adapter's tool, whichever is to train it; a file
/// for a tool whose own are scripts has those of the tool with the same trainer.
pub(in crate::tools) fn words_of(tool: Tool, keys: &Keys<'_>) -> Tool {
    let is_of_adapter = |one: &Tool| one.import().file == FileKind::Adapter && (one.import().has_own_keys)(keys);
    let is_lent = matches!(tool.import().file, FileKind::Script(_)) && !is_script(keys.path());
    let is_lender = |one: &Tool| is_lent && (one.import().has_shared_keys)(keys);
    let mut all = Tool::ALL.iter().copied();
    all.find(|one| is_of_adapter(one) || is_lender(one)).unwrap_or(tool)
}

/// The tools whose files say all of a training, as a sentence has them.
fn titles_of_trainings() -> String {
    let trainings = Tool::ALL.iter().filter(|tool| tool.import().file == FileKind::Training);
    let titles: Vec<&str> = trainings.map(|tool| tool.title()).collect();
    match titles.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => titles.concat(),
    }
}

/// Whether a file is a Python program.
pub(in crate::tools) fn is_script(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "py")
}

/// The tool whose scripts have a word that stands in this one.
fn script_of(path: &Path, text: &str) -> Option<Tool> {
    let is_its = |tool: &Tool| matches!(tool.import().file, FileKind::Script(word) if text.contains(word));
    Tool::ALL.iter().copied().find(|tool| is_script(path) && is_its(tool))
}

/// An adapter's config serves every tool that is built on PEFT, and keys of one trainer the tools that have it; other files are their
/// tool's.
fn asked_for(asked: Option<Tool>, found: ToldBy) -> Tool {
    match (asked, found) {
        (Some(asked), ToldBy::OwnKeys(found)) if found.import().file == FileKind::Adapter => asked,
        (Some(asked), ToldBy::SharedKeys(_)) if asked.import().file != FileKind::Adapter => asked,
        (_, ToldBy::OwnKeys(found) | ToldBy::SharedKeys(found)) => found,
    }
}

/// The keys of a file's text.
pub(in crate::tools) fn parsed(path: &Path, text: &str) -> Result<Map<String, Value>, StackFileError> {
    let syntax = |message: String| StackFileError::Syntax {
        path: path.to_owned(),
        message,
    };
    if is_script(path) {
        return Ok(script::python(text));
    }
    let read = match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(_) => serde_saphyr::from_str::<Value>(text).map_err(|error| error.to_string()),
    };
    match read {
        Ok(Value::Object(values)) => Ok(values),
        other => {
            let arguments = script::arguments(text);
            match (arguments.is_empty(), other) {
                (false, _) => Ok(arguments),
                (true, Ok(_)) => Err(syntax("it holds no keys".into())),
                (true, Err(message)) => Err(syntax(message)),
            }
        }
    }
}

/// A tool, and which of its keys a file has.
#[derive(Clone, Copy)]
enum ToldBy {
    OwnKeys(Tool),
    SharedKeys(Tool),
}

/// The tool that a key belongs to and no other has, or the one that has keys which are no other's own.
fn told_by(keys: &Keys<'_>) -> Option<ToldBy> {
    let mut all = Tool::ALL.iter().copied();
    let own = all.find(|tool| (tool.import().has_own_keys)(keys));
    own.map(ToldBy::OwnKeys).or_else(|| {
        let mut all = Tool::ALL.iter().copied();
        all.find(|tool| (tool.import().has_shared_keys)(keys))
            .map(ToldBy::SharedKeys)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Imported, parse_recipe, read_recipe};
    use super::*;

    fn of(text: &str) -> Result<Imported, StackFileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_recipe(file.path(), None)
    }

    #[test]
    fn each_tools_file_is_told_by_its_keys() {
        for (text, tool) in [
            ("model_name_or_path: m\nuse_peft: true\nlora_r: 8\n", Tool::Trl),
            ("trl sft --model_name_or_path m --use_peft --lora_r 4", Tool::Trl),
            ("base_model: m\nadapter: lora\nlora_r: 32\n", Tool::Axolotl),
            (
                "model_name_or_path: m\nstage: sft\nlora_target: all\n",
                Tool::LlamaFactory,
            ),
            (
                "model:\n  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b\n",
                Tool::Torchtune,
            ),
            (r#"{"peft_type": "LORA", "r": 4}"#, Tool::Peft),
        ] {
            assert_eq!(of(text).unwrap().tool, tool, "{text}");
        }
    }

    #[test]
    fn a_tool_that_is_asked_for_counts_where_keys_tell_none_alone() {
        let of = |text: &str, asked: Tool| parse_recipe(Path::new("a.yaml"), text, Some(asked)).unwrap().tool;
        let shared = "model_name_or_path: m\nper_device_train_batch_size: 2\n";
        for asked in [Tool::Trl, Tool::LlamaFactory, Tool::Unsloth] {
            assert_eq!(of(shared, asked), asked);
            assert_eq!(of("nothing: 1\n", asked), asked);
        }
        assert_eq!(of(shared, Tool::Peft), Tool::Trl, "an adapter's config has other keys");
        assert_eq!(of("base_model: m\n", Tool::Trl), Tool::Axolotl);
    }

    #[test]
    fn wrong_values_name_file_key_and_what_to_do() {
        for (text, parts) in [
            ("lora_r: many\n", ["`lora_r`", "whole number"]),
            (
                "model_name_or_path: [a]\nlora_r: 8\n",
                ["model_name_or_path", "write a text"],
            ),
            ("nothing: 1\n", ["tells its tool", "--stack"]),
            ("[1, 2]", ["holds no keys", "YAML"]),
            ("a: [", ["YAML", "tmp"]),
            ("base_model: m\nsequence_len: 0\n", ["`sequence_len`", "1 or more"]),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
    }
}
