//! What a tool does by a file or a script: the training that is read of it, or something else, which is refused by the key that says so.

use std::ffi::OsStr;
use std::path::Path;

use super::command_line::CommandLine;
use super::task_row::{Task, TaskRow};
use super::task_table::{
    EXAMPLES, NO_COMMAND, NO_TRAINING, OF_PEFT_EXAMPLE, OF_TRAININGS, SCRIPTS, TASKS, TRAIN, UNNAMED,
};
use super::{Keys, Script, StackFileError};
use crate::Tool;
use peft_tune_core::recipe::TrainerKind;

/// What a file's training is, and what had to be assumed to tell.
pub(super) struct FoundTask {
    pub trainer: TrainerKind,
    pub note: Option<String>,
}

impl FoundTask {
    /// Training on answers as they stand.
    const SFT: Self = Self {
        trainer: TrainerKind::Sft,
        note: None,
    };
}

/// What is told to do about a file that says something else.
const GIVE_ANOTHER: &str = "give a file of supervised fine-tuning, of DPO, KTO or ORPO";
const SAY_WHICH: &str =
    "begin it with the line `# trl dpo --config FILE` where that starts it, or give the command itself";

/// The trainer of a file of `tool`, which `started` starts where the file is a command.
///
/// # Errors
/// A file by which the tool does something else, or of which that cannot be told.
pub(super) fn trainer_of(
    keys: &Keys<'_>,
    tool: Tool,
    text: &str,
    started: &[String],
) -> Result<FoundTask, StackFileError> {
    if let (Tool::Axolotl, [script]) = (tool, started) {
        return Err(StackFileError::OtherTask {
            location: keys.path().display().to_string(),
            what: format!("`{script}` is a script with options of its own, and axolotl reads files alone"),
            instead: "give the script itself, or a config of axolotl",
        });
    }
    let command = match tool {
        Tool::Trl => command_of(text, started),
        _ => Vec::new(),
    };
    let by_command = task_of_command(&command);
    let rows: Vec<&TaskRow> = rows_of(tool).filter(|row| row.holds(keys)).collect();
    if let Some(what) = by_command.and_then(Task::not_read) {
        return Err(StackFileError::OtherTask {
            location: keys.path().display().to_string(),
            what: match command.as_slice() {
                [script] => format!("`{script}` {what}"),
                words => told(&words.join(" "), tool, what),
            },
            instead: GIVE_ANOTHER,
        });
    }
    check(keys, tool, &rows)?;
    let by_keys = rows.iter().map(|row| row.task);
    let named = by_command.into_iter().chain(by_keys).find_map(Task::trainer);
    match named {
        Some(trainer) => Ok(FoundTask { trainer, note: None }),
        None if tool == Tool::Trl => {
            says_training(keys, &command)?;
            let found = unnamed(keys, text, started)?;
            Ok(FoundTask {
                note: found.note.or_else(|| script_taken(keys, started)),
                ..found
            })
        }
        None => Ok(FoundTask::SFT),
    }
}

/// The trainer of a script, which the call of it tells.
///
/// # Errors
/// Arguments by which the trainer does something else.
pub(super) fn trainer_of_script(keys: &Keys<'_>, script: &Script, tool: Tool) -> Result<TrainerKind, StackFileError> {
    // Whatever loads the model, these are arguments of TRL's trainers and of PEFT's adapters.
    let rows = rows_of(Tool::Trl).chain(rows_of(Tool::Peft));
    let rows: Vec<&TaskRow> = rows.filter(|row| row.holds(keys)).collect();
    check(keys, tool, &rows)?;
    Ok(script.trainer)
}

/// Refuses what is not read, by the first of the rows that hold and say so.
fn check(keys: &Keys<'_>, tool: Tool, rows: &[&TaskRow]) -> Result<(), StackFileError> {
    match rows.iter().find_map(|row| Some((row, row.task.not_read()?))) {
        Some((row, what)) => Err(StackFileError::OtherTask {
            location: keys.location(row.key),
            what: told(&row.words(keys), tool, what),
            instead: GIVE_ANOTHER,
        }),
        None => Ok(()),
    }
}

/// What is done by some words, as a sentence.
fn told(words: &str, tool: Tool, what: &str) -> String {
    format!("by `{words}` {} {what}", tool.title())
}

/// What a file is started by: a command of its own, or the one that its heading names.
fn command_of(text: &str, started: &[String]) -> Vec<String> {
    match started {
        [] => CommandLine::in_comments(text).map_or_else(Vec::new, |command| command.started),
        started => started.to_vec(),
    }
}

/// A line on a script of which nothing is known but its options, and so not what it takes where these say nothing.
fn script_taken(keys: &Keys<'_>, started: &[String]) -> Option<String> {
    let [script] = started else { return None };
    (!keys.has(OF_PEFT_EXAMPLE)).then(|| {
        format!("`{script}` is taken for a script of TRL's SFTTrainer: where its options say nothing, TRL's defaults are taken")
    })
}

/// Refuses a script that neither its name nor an option calls a training.
fn says_training(keys: &Keys<'_>, started: &[String]) -> Result<(), StackFileError> {
    let [script] = started else { return Ok(()) };
    let is_named = pieces(script).any(|piece| TRAIN.iter().any(|word| piece.contains(word)));
    if is_named || OF_TRAININGS.iter().any(|key| keys.has(key)) {
        return Ok(());
    }
    Err(StackFileError::OtherTask {
        location: keys.path().display().to_string(),
        what: format!("`{script}` is started without an option of a training"),
        instead: GIVE_ANOTHER,
    })
}

/// The trainer of a file of TRL that does not name one: by keys that several have and by the file's name, or by its name alone.
fn unnamed(keys: &Keys<'_>, text: &str, started: &[String]) -> Result<FoundTask, StackFileError> {
    let row = UNNAMED.iter().find(|row| row.holds(keys));
    let Some((row, what)) = row.and_then(|row| Some((row, row.task.not_read()?))) else {
        return Ok(match started {
            [] => by_name_alone(keys.path(), text),
            _ => FoundTask::SFT,
        });
    };
    let words = row.words(keys);
    match by_name(keys.path()).filter(|trainer| !trainer.is_sft()) {
        Some(trainer) => Ok(FoundTask {
            trainer,
            note: Some(format!(
                "`{words}` is of several trainers: by the name of the file or its folder it is taken for `trainer: {trainer}`"
            )),
        }),
        None => Err(StackFileError::OtherTask {
            location: keys.path().display().to_string(),
            what: told(&words, Tool::Trl, what),
            instead: SAY_WHICH,
        }),
    }
}

fn rows_of(tool: Tool) -> impl Iterator<Item = &'static TaskRow> {
    let own = TASKS.iter().filter(move |(own, _)| *own == tool);
    own.flat_map(|(_, rows)| rows.iter())
}

/// What a command of TRL does, or a script by its name.
fn task_of_command(started: &[String]) -> Option<Task> {
    match started {
        [program, told] if program == "trl" => {
            let known = TrainerKind::from_name(told).map(Task::Trains);
            known.or_else(|| task_of_word(told)).or(Some(NO_COMMAND))
        }
        [script] => {
            let stem = script.trim_end_matches("_no_trainer");
            if let Some((_, task)) = EXAMPLES.iter().find(|(names, _)| names.contains(&stem)) {
                return Some(*task);
            }
            let pieces = || pieces(script);
            let is_training = pieces().any(|piece| TRAIN.contains(&piece.as_str()));
            let no_training = NO_TRAINING.iter().filter(|_| !is_training);
            let other = no_training
                .chain(SCRIPTS)
                .find(|(words, _)| pieces().any(|piece| words.contains(&piece.as_str())))
                .map(|(_, task)| *task);
            let known = || pieces().find_map(|piece| task_of_word(&piece));
            let trainer = || pieces().find_map(|piece| TrainerKind::from_name(&piece));
            other.or_else(known).or_else(|| trainer().map(Task::Trains))
        }
        _ => None,
    }
}

/// What TRL does by a word that no recipe has a trainer for, where the word is known.
fn task_of_word(word: &str) -> Option<Task> {
    let reason = TrainerKind::why_not(word)?;
    Some(Task::Other(reason))
}

/// The trainer of a file whose keys say none: by its name, or by that which its first line has. What says none of those that are read
/// is that of answers, and a word for another trainer is told.
fn by_name_alone(path: &Path, text: &str) -> FoundTask {
    let heading = text.lines().next().and_then(|line| line.strip_prefix('#'));
    let heading = heading.map(|line| Path::new(line.trim()));
    let heading = heading.filter(|name| name.extension().is_some_and(|end| end == "yaml" || end == "yml"));
    let heading = heading.and_then(Path::file_stem);
    match by_name(path).or_else(|| trainer_in(heading)) {
        Some(trainer) if !trainer.is_sft() => FoundTask {
            trainer,
            note: Some(format!(
                "no key says a trainer: by the name of the file or its folder it is taken for `trainer: {trainer}`"
            )),
        },
        Some(_) => FoundTask::SFT,
        None => FoundTask {
            note: [path.file_stem(), heading].into_iter().find_map(other_trainer),
            ..FoundTask::SFT
        },
    }
}

/// A line on a word in a name that is one for a trainer which is not read.
fn other_trainer(name: Option<&OsStr>) -> Option<String> {
    let mut found = pieces(name?.to_str()?).filter_map(|piece| Some((TrainerKind::why_not(&piece)?, piece)));
    found.next().map(|(what, piece)| {
        format!(
            "the name of the file says `{piece}`, by which TRL {what}, and no key does: supervised fine-tuning is read"
        )
    })
}

/// The trainer in the name of a file, or in that of the folder that it lies in.
fn by_name(path: &Path) -> Option<TrainerKind> {
    trainer_in(path.file_stem()).or_else(|| trainer_in(path.parent()?.file_name()))
}

/// The trainer that a name says. Where it says several, it may be what a training on answers is for.
fn trainer_in(name: Option<&OsStr>) -> Option<TrainerKind> {
    let words = pieces(name?.to_str()?).filter_map(|piece| TrainerKind::from_name(&piece));
    let said: Vec<TrainerKind> = words.collect();
    let of_answers = said.iter().find(|trainer| trainer.is_sft());
    of_answers.or(said.first()).copied()
}

/// Words of a name, in small letters.
fn pieces(name: &str) -> impl Iterator<Item = String> {
    let pieces = name.split(|letter: char| !letter.is_alphanumeric());
    pieces.filter(|piece| !piece.is_empty()).map(str::to_lowercase)
}
