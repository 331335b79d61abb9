//! Words of a command, and the place of its training's settings that they tell.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::shell::command_line;
use crate::tools::Tool;

/// Programs whose name tells the tool.
const PROGRAMS: [(&str, Tool); 5] = [
    ("trl", Tool::Trl),
    ("axolotl", Tool::Axolotl),
    ("axolotl.cli.train", Tool::Axolotl),
    ("llamafactory-cli", Tool::LlamaFactory),
    ("tune", Tool::Torchtune),
];

/// Options of launchers that say how many devices train.
const DEVICE_COUNTS: [&str; 5] = [
    "num_processes",
    "num-processes",
    "nproc_per_node",
    "nproc-per-node",
    "num_gpus",
];

/// Place of a training's settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// A settings file, with keys that the command changes.
    File { path: PathBuf, changes: Map<String, Value> },
    /// The command itself, as a line of a shell; and the script that it runs, where it runs one.
    Words { line: String, script: Option<PathBuf> },
    /// A script.
    Script(PathBuf),
}

/// What a command's words tell of its training.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CommandWords {
    /// `None` where no word is a file or an option.
    pub source: Option<Source>,
    pub tool: Option<Tool>,
    /// Number of devices that the launcher is told.
    pub devices: Option<u64>,
    /// Folder that the training writes to, where an option names it.
    pub output: Option<PathBuf>,
}

impl CommandWords {
    /// Takes a command apart; `is_file` tells which paths are files.
    pub(super) fn of(words: &[String], is_file: impl Fn(&Path) -> bool) -> Self {
        let program = words.iter().position(|word| tool_of(word).is_some());
        let script = words.iter().position(|word| is_script(word));
        let module = words.iter().position(|word| word == "-m").map(|at| at + 1);
        let begins = program.or(script).or(module).unwrap_or(0).min(words.len());
        let (launcher, own) = words.split_at(begins);
        let options = options_of(own);
        let file = settings_file(own, &is_file);
        let script = script.map(|at| PathBuf::from(&words[at])).filter(|path| is_file(path));
        let has_options = options.keys().any(|name| name != "config");
        let source = match (file, script) {
            (Some(path), _) => Some(Source::File {
                changes: changes_of(own, &path),
                path,
            }),
            (None, script) if has_options => Some(Source::Words {
                line: command_line(words),
                script,
            }),
            (None, script) => script.map(Source::Script),
        };
        let devices = options_of(launcher)
            .into_iter()
            .find(|(name, _)| DEVICE_COUNTS.contains(&name.as_str()))
            .and_then(|(_, value)| value.as_u64());
        let output = ["output_dir", "output-dir"]
            .iter()
            .find_map(|name| options.get(*name)?.as_str());
        Self {
            source,
            tool: program.and_then(|at| tool_of(&words[at])),
            devices: devices.filter(|count| *count > 0),
            output: output.map(PathBuf::from),
        }
    }
}

fn tool_of(word: &str) -> Option<Tool> {
    let name = word.rsplit('/').next().unwrap_or(word);
    PROGRAMS
        .iter()
        .find(|(program, _)| *program == name)
        .map(|(_, tool)| *tool)
}

fn is_script(word: &str) -> bool {
    let ends = [".py", ".ipynb", ".sh"];
    !word.starts_with('-') && ends.iter().any(|end| word.ends_with(end))
}

/// The name and the value of an option in one word.
fn option(word: &str) -> Option<(&str, Option<&str>)> {
    let option = word.strip_prefix("--").filter(|option| !option.is_empty())?;
    Some(match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    })
}

/// Options by name; one without a value is true.
fn options_of(words: &[String]) -> Map<String, Value> {
    let mut all = Map::new();
    for (at, word) in words.iter().enumerate() {
        let Some((name, own)) = option(word) else { continue };
        let next = words.get(at + 1).filter(|next| option(next).is_none());
        let value = own.or(next.map(String::as_str));
        all.insert(name.to_owned(), value.map_or(Value::Bool(true), value_of));
    }
    all
}

/// A word as a value of JSON where it is one, else as a text.
fn value_of(word: &str) -> Value {
    match word {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        word => serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned())),
    }
}

/// The settings file: behind `--config`, else the first file of YAML or JSON that is no value of another option.
fn settings_file(words: &[String], is_file: &impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let named = words.iter().enumerate().find_map(|(at, word)| match option(word)? {
        ("config", Some(path)) => Some(path),
        ("config", None) => words.get(at + 1).map(String::as_str),
        _ => None,
    });
    let ends = [".yaml", ".yml", ".json"];
    let alone = || {
        let mut found = words.iter().enumerate().filter(|(at, word)| {
            let is_value = at.checked_sub(1).is_some_and(|before| words[before].starts_with('-'));
            !word.starts_with('-') && !is_value && ends.iter().any(|end| word.ends_with(end))
        });
        found.next().map(|(_, word)| word.as_str())
    };
    let path = PathBuf::from(named.or_else(alone)?);
    is_file(&path).then_some(path)
}

/// Keys of the file at `path` that other words give: `--key value`, `--key=value`, `key=value`.
fn changes_of(words: &[String], path: &Path) -> Map<String, Value> {
    let mut changes = Map::new();
    for (name, value) in options_of(words) {
        // The word behind a flag may be the file itself.
        let is_flag = value.as_str().is_some_and(|value| Path::new(value) == path);
        if name != "config" {
            let value = if is_flag { Value::Bool(true) } else { value };
            changes.insert(name.replace('-', "_"), value);
        }
    }
    for (key, value) in words.iter().filter_map(|word| word.split_once('=')) {
        let is_key = key.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c)) && !key.is_empty();
        if is_key {
            changes.insert(key.to_owned(), value_of(value));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(line: &str) -> CommandWords {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        CommandWords::of(&words, |path| !path.to_string_lossy().contains("missing"))
    }

    fn file(line: &str) -> (String, Value) {
        match of(line).source {
            Some(Source::File { path, changes }) => (path.display().to_string(), Value::Object(changes)),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_file_and_what_the_command_changes_of_it_are_found() {
        for (line, path, changes) in [
            ("axolotl train c.yaml", "c.yaml", json!({})),
            (
                "axolotl train c.yaml --learning-rate 1e-4 --debug",
                "c.yaml",
                json!({"learning_rate": 1e-4, "debug": true}),
            ),
            (
                "llamafactory-cli train a/sft.yaml lora_rank=8 bf16=true",
                "a/sft.yaml",
                json!({"lora_rank": 8, "bf16": true}),
            ),
            (
                "tune run lora_finetune_single_device --config t.yaml model.lora_rank=4",
                "t.yaml",
                json!({"model.lora_rank": 4}),
            ),
            (
                "accelerate launch --config_file acc.yaml --num_processes 2 -m axolotl.cli.train c.yml",
                "c.yml",
                json!({}),
            ),
            (
                "trl sft --config=c.yaml --deepspeed ds.json",
                "c.yaml",
                json!({"deepspeed": "ds.json"}),
            ),
            ("python train.py --config c.yaml", "c.yaml", json!({})),
        ] {
            assert_eq!(file(line), (path.to_owned(), changes), "{line}");
        }
    }

    #[test]
    fn words_and_scripts_stand_in_for_a_file() {
        let words = of("python sft.py --lora_r 8");
        assert!(
            matches!(&words.source, Some(Source::Words { line, script: Some(path) })
                if line == "python sft.py --lora_r 8" && path == Path::new("sft.py")),
            "{words:?}"
        );
        assert_eq!(of("python train.py").source, Some(Source::Script("train.py".into())));
        assert_eq!(of("bash run.sh").source, Some(Source::Script("run.sh".into())));
        assert_eq!(of("sleep 5").source, None);
        assert_eq!(of("python missing.py").source, None);
        assert_eq!(of("axolotl train missing.yaml").source, None);
        assert_eq!(of("").source, None);
    }

    #[test]
    fn the_launcher_tells_the_devices_and_the_program_the_tool() {
        let two = of("accelerate launch --num_processes 2 train.py --output_dir out");
        assert_eq!((two.devices, two.tool), (Some(2), None));
        assert_eq!(two.output, Some("out".into()));
        let four = of("torchrun --nproc-per-node=4 train.py");
        assert_eq!(four.devices, Some(4));
        assert_eq!(of("/venv/bin/trl sft --lora_r 8").tool, Some(Tool::Trl));
        assert_eq!(of("torchrun --nproc-per-node=gpu train.py").devices, None);
    }
}
