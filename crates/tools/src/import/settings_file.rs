//! A settings file of any of the tools: its text, its keys, and which tool's it is.

use std::io::Read;
use std::path::{Component, Path};

use serde_json::{Map, Value};

use super::command_line::CommandLine;
use super::one_line::on_one_line;
use super::script::is_notebook;
use super::unsaid::Unsaid;
use super::{FileKind, Keys, Library, Script, StackFileError};
use crate::Tool;

/// A file that is larger is none that a person wrote.
const LARGEST: u64 = 4 << 20;

/// A notebook holds what its cells printed, pictures too.
const LARGEST_NOTEBOOK: u64 = 64 << 20;

/// Commands that are not read and that a line names, at most so many.
const NAMED: usize = 8;

/// The text of a settings file.
pub fn text_of(path: &Path) -> Result<String, StackFileError> {
    let failed = |source| StackFileError::Read {
        path: path.to_owned(),
        source,
    };
    let largest = match is_notebook(path) {
        true => LARGEST_NOTEBOOK,
        false => LARGEST,
    };
    // What is no file of a disk, such as another program's output, has no length to look at.
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(largest + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > largest {
        let path = path.to_owned();
        return Err(StackFileError::TooLarge { path, largest });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The tool that trains from a file: what its keys tell, or the one that is asked for.
pub(crate) fn tool_of(keys: &Keys<'_>, asked: Option<Tool>) -> Result<Tool, StackFileError> {
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

/// The tool that trains from a script, which is that of its library or another one that is asked for and whose own are scripts, and
/// the tool whose words the script has. Those of transformers' Trainer are TRL's.
pub(crate) fn tools_of_script(script: &Script, asked: Option<Tool>) -> [Tool; 2] {
    let of = |library: Library| {
        let mut all = Tool::ALL.iter().copied();
        let found = all.find(|tool| tool.import().library == Some(library));
        found.expect("each library has a tool that its scripts train in")
    };
    let own = of(script.library);
    let trains = asked
        .filter(|tool| tool.import().file == FileKind::Script)
        .unwrap_or(own);
    let words = match own.import().file {
        FileKind::Adapter => of(Library::Trl),
        FileKind::Training | FileKind::Script => own,
    };
    [trains, words]
}

/// The tool whose words a settings file has. An adapter's are those of the adapter's tool, whichever is to train it; a file
/// for a tool whose own are scripts has those of the tool with the same trainer.
pub(crate) fn words_of(tool: Tool, keys: &Keys<'_>) -> Tool {
    let is_of_adapter = |one: &Tool| one.import().file == FileKind::Adapter && (one.import().has_own_keys)(keys);
    let is_lent = tool.import().file == FileKind::Script;
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

/// Whether a file is a Python program, or a notebook.
pub(crate) fn is_script(path: &Path) -> bool {
    is_notebook(path) || path.extension().is_some_and(|end| end == "py")
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

/// The text of a settings file, taken apart.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub values: Map<String, Value>,
    /// Whether they are options of a command, and the text is one of a shell.
    pub is_command: bool,
    /// Keys whose values the script of a shell does not say.
    pub unsaid: Unsaid,
    /// What the command starts that they are options of; nothing where they are of a file.
    pub started: Vec<String>,
    /// The file that the command reads its settings from.
    pub config: Option<String>,
    /// What is left out of the values, and what a launcher says, with what to do.
    pub notes: Vec<String>,
}

/// The keys of the text of a settings file.
pub(crate) fn parsed(path: &Path, text: &str) -> Result<Parsed, StackFileError> {
    let syntax = |message: String| StackFileError::Syntax {
        path: path.to_owned(),
        message,
    };
    let keys_alone = |mut values| {
        parse_maps(&mut values);
        Parsed {
            values,
            ..Parsed::default()
        }
    };
    let read = match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(_) => serde_saphyr::from_str::<Value>(text).map_err(|error| error.to_string()),
    };
    // A command with a colon in it is a map of one key to YAML.
    let is_command = |key: &String| key.contains(" --");
    let beside = |name: &str| text_below(path.parent()?, name);
    match read {
        Ok(Value::Object(values)) if !values.keys().any(is_command) => Ok(keys_alone(values)),
        other => match (of_commands(CommandLine::all(text, &beside)), other) {
            (Some(parsed), _) => Ok(parsed),
            (None, Ok(_)) => Err(syntax("it holds no keys".into())),
            (None, Err(message)) => Err(syntax(message)),
        },
    }
}

/// Puts maps in the place of texts of them, as transformers does with the settings that are maps.
fn parse_maps(values: &mut Map<String, Value>) {
    let is_map = |key: &str| key.ends_with("_kwargs") || key.ends_with("_config") || key == "deepspeed";
    for (_, value) in values.iter_mut().filter(|(key, _)| is_map(key)) {
        let text = value.as_str().filter(|text| text.starts_with('{'));
        if let Some(Ok(map)) = text.map(serde_json::from_str::<Map<String, Value>>) {
            *value = Value::Object(map);
        }
    }
}

/// The text of a file below a folder; `None` where there is none that a person wrote.
fn text_below(folder: &Path, name: &str) -> Option<String> {
    let is_below = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let path = folder.join(name);
    let is_file = Path::new(name).components().all(is_below) && path.is_file();
    is_file.then(|| text_of(&path).ok()).flatten()
}

/// The command with the most options, which is the one that trains; the others are told. `None` where there is no command.
fn of_commands(mut commands: Vec<CommandLine>) -> Option<Parsed> {
    let most = commands.iter().map(|command| command.options.len()).max()?;
    let at = commands.iter().position(|command| command.options.len() == most)?;
    let CommandLine {
        started,
        options,
        config,
        unsaid,
        mut notes,
    } = commands.remove(at);
    notes.extend((!commands.is_empty()).then(|| {
        format!(
            "of several commands the one with the most options is read, `{}`, and not {}; give it in a file of its own",
            started.join(" "),
            names_of(&commands)
        )
    }));
    Some(Parsed {
        values: options,
        is_command: true,
        unsaid,
        started,
        config,
        notes,
    })
}

/// What some commands start, as a line has it.
fn names_of(commands: &[CommandLine]) -> String {
    let named = commands.iter().take(NAMED);
    let named = named.map(|command| format!("`{}`", on_one_line(&command.started.join(" "))));
    let others = commands.len().saturating_sub(NAMED);
    let others = (others > 0).then(|| format!("{others} more"));
    named.chain(others).collect::<Vec<_>>().join(", ")
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
    #[cfg(unix)]
    fn a_file_without_end_is_too_large() {
        let error = text_of(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(error, StackFileError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn of_many_commands_the_first_ones_are_named() {
        let others: String = (0..30).map(|number| format!("echo {number} --quiet\n")).collect();
        let imported = of(&format!(
            "trl sft --model_name_or_path m --use_peft --lora_r 4\n{others}"
        ))
        .unwrap();
        let told = imported.notes.iter().find(|note| note.contains("several commands"));
        let told = told.unwrap();
        assert!(
            told.contains("and not `echo 0`, `echo 1`") && told.contains("`echo 7`, 22 more;"),
            "{told}"
        );
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
