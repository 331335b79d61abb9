//! [`TaskRow`]: a key of a tool's file that says what the tool does by it.

use serde_json::Value;

use super::Keys;
use super::one_line::on_one_line;
use crate::known_keys::{is_nothing, written};
use peft_tune_core::recipe::TrainerKind;

/// What a tool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// A training that TRL's trainer of that kind does.
    Trains(TrainerKind),
    /// What TRL does by the trainer of this name, which no recipe has.
    Like(&'static str),
    /// Something else, as the rest of a sentence that begins with the tool.
    Other(&'static str),
}

/// Row of the table: a key that says what the tool does.
pub(super) struct TaskRow {
    /// Name of the key, below other keys behind dots.
    pub key: &'static str,
    pub says: Says,
    pub beside: Beside,
    pub task: Task,
}

/// Values of a key that count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Says {
    /// Words, alone or in a list.
    Word(&'static [&'static str]),
    /// Texts with one of these parts, alone or in a list.
    Part(&'static [&'static str]),
    /// Values that are something: neither false nor 0.
    Anything,
    /// Values that are something, and none of these words.
    Except(&'static [&'static str]),
    /// Expressions for names, of which none is for all below one of the names of some group.
    Lacks(&'static [&'static [&'static str]]),
}

/// What another key has to be, for the row to count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Beside {
    Whatever,
    /// The key is this word.
    Word(&'static str, &'static str),
    /// The key says nothing.
    Nothing(&'static str),
    /// The key says something.
    Something(&'static str),
}

impl Task {
    /// The trainer of a training that is read.
    pub(super) fn trainer(self) -> Option<TrainerKind> {
        match self {
            Self::Trains(trainer) => Some(trainer),
            Self::Like(_) | Self::Other(_) => None,
        }
    }

    /// What is done in the place of a training that is read.
    pub(super) fn not_read(self) -> Option<&'static str> {
        match self {
            Self::Trains(_) => None,
            Self::Like(name) => TrainerKind::why_not(name),
            Self::Other(what) => Some(what),
        }
    }
}

impl TaskRow {
    /// Whether a file's keys say so. A key that does is read.
    pub(super) fn holds(&self, keys: &Keys<'_>) -> bool {
        let is_beside = match self.beside {
            Beside::Whatever => true,
            Beside::Word(key, word) => value_at(keys, key).is_some_and(|value| has(value, |text| text == word)),
            Beside::Nothing(key) => value_at(keys, key).is_none_or(is_nothing),
            Beside::Something(key) => value_at(keys, key).is_some_and(|value| !is_nothing(value)),
        };
        let Some(value) = value_at(keys, self.key).filter(|_| is_beside) else {
            return false;
        };
        let says_so = match self.says {
            Says::Word(words) => has(value, |text| words.contains(&text)),
            Says::Part(parts) => has(value, |text| parts.iter().any(|part| text.contains(part))),
            Says::Anything => !is_nothing(value),
            Says::Except(words) => !is_nothing(value) && has(value, |text| !words.contains(&text)),
            Says::Lacks(groups) => {
                let has_one = |names: &&[&str]| has(value, |text| names.contains(&name_of(text)));
                !is_nothing(value) && !groups.iter().all(has_one)
            }
        };
        if says_so {
            keys.mark(self.key.split('.').next().unwrap_or(self.key));
        }
        says_so
    }

    /// The key with its value, as messages have it.
    pub(super) fn words(&self, keys: &Keys<'_>) -> String {
        let value = value_at(keys, self.key).map(written).unwrap_or_default();
        format!("{}: {}", self.key, on_one_line(&value))
    }
}

/// The value of a key that may lie below others. What does not refuse it has yet to be read or told.
fn value_at<'a>(keys: &Keys<'a>, key: &str) -> Option<&'a Value> {
    let mut names = key.split('.');
    let first = keys.seen(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}

/// The name that an expression is for, with all below it: `model.layers` of `^model.layers.*`.
fn name_of(expression: &str) -> &str {
    let name = expression.trim_start_matches('^');
    let name = name.trim_end_matches(['.', '*', '+', '$']);
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Whether a text, or one of a list, is such a one.
fn has(value: &Value, is_such: impl Fn(&str) -> bool) -> bool {
    match value {
        Value::Array(all) => all.iter().any(|one| is_such(&written(one))),
        one => is_such(&written(one)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_for_all_below_a_name() {
        for (expression, name) in [
            ("^model.language_model.*", "model.language_model"),
            ("lm_head", "lm_head"),
            ("^lm_head.weight$", "lm_head"),
            ("model.layers.4[4-9]+.mlp", "model.layers.4[4-9]+.mlp"),
        ] {
            assert_eq!(name_of(expression), name);
        }
    }
}
