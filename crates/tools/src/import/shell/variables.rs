//! [`Variables`] of a shell's script, as far as the script says them, and what their expansions stand for.
//!
//! A script is followed from its beginning to its end. What is assigned in a block that may not run, or that runs several times, is not
//! known behind it or before; neither is what a function assigns, nor in a function what the script assigns twice. What comes from
//! elsewhere is never known: arguments, the environment, commands, and files that do not lie beside the script.

use std::collections::{BTreeMap, BTreeSet};

use super::arithmetic::whole_number;
use super::expansion::{is_of_name, length_of, with_signs};
use super::word::Word;

/// Bytes that values may take together where they are put in.
const ROOM: usize = 1 << 20;

/// Expansions within expansions, at most so many.
const DEEPEST: usize = 8;

/// What is assigned to a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    One(Word),
    List(Vec<Word>),
}

/// How often each variable is assigned, and which of them in ways that cannot be followed.
#[derive(Debug, Default)]
pub(super) struct Assigned {
    times: BTreeMap<String, usize>,
    uncertain: BTreeSet<String>,
}

impl Assigned {
    /// Whether a variable is assigned anywhere.
    pub(super) fn has(&self, name: &str) -> bool {
        self.times.contains_key(name)
    }
}

/// Variables up to a command of a script.
#[derive(Debug)]
pub(super) struct Variables {
    /// Assignments of the whole script; none while they are counted.
    of_script: Assigned,
    so_far: Assigned,
    values: BTreeMap<String, Value>,
    /// Whether commands run where a function is called, and so behind what the script assigns further down.
    pub(super) is_in_function: bool,
    room: usize,
}

impl Variables {
    /// Variables at the beginning of a script of these assignments.
    pub(super) fn of(of_script: Assigned) -> Self {
        Self {
            of_script,
            so_far: Assigned::default(),
            values: BTreeMap::new(),
            is_in_function: false,
            room: ROOM,
        }
    }

    /// What was assigned.
    pub(super) fn into_assigned(self) -> Assigned {
        self.so_far
    }

    pub(super) fn assign(&mut self, name: &str, value: Value) {
        self.count(name);
        self.values.insert(name.to_owned(), value);
    }

    /// Puts a value behind the one that a variable has.
    pub(super) fn append(&mut self, name: &str, value: Value) {
        self.count(name);
        let joined = match (self.values.remove(name), value) {
            (Some(Value::One(mut word)), Value::One(more)) => {
                word.append(more);
                Value::One(word)
            }
            (Some(Value::List(mut words)), Value::List(more)) => {
                words.extend(more);
                Value::List(words)
            }
            // What stands before it may come from the environment.
            _ => return,
        };
        self.values.insert(name.to_owned(), joined);
    }

    /// Notes that a variable has a value that cannot be followed.
    pub(super) fn lose(&mut self, name: &str) {
        self.count(name);
        self.so_far.uncertain.insert(name.to_owned());
        self.values.remove(name);
    }

    fn count(&mut self, name: &str) {
        *self.so_far.times.entry(name.to_owned()).or_default() += 1;
    }

    /// The words that an expansion stands for: one, or those of a list. `None` where the script does not say it.
    pub(super) fn expand(&mut self, expansion: &str) -> Option<Vec<Word>> {
        self.expand_within(expansion, 0)
    }

    fn expand_within(&mut self, expansion: &str, depth: usize) -> Option<Vec<Word>> {
        let inner = expansion.strip_prefix('$')?;
        if let Some(sum) = inner.strip_prefix("((").and_then(|sum| sum.strip_suffix("))")) {
            return Some(vec![self.sum(sum, expansion, depth)?]);
        }
        let Some(inner) = inner.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')) else {
            return Some(vec![self.one(inner)?]);
        };
        let end = inner.find(|letter: char| !is_of_name(letter));
        let (name, operator) = inner.split_at(end.unwrap_or(inner.len()));
        match operator {
            "" => Some(vec![self.one(name)?]),
            "[@]" => self.words(name, usize::MAX),
            _ => Some(vec![self.or_default(name, operator, expansion, depth)?]),
        }
    }

    /// The value of a variable; of a list its first word.
    fn one(&mut self, name: &str) -> Option<Word> {
        self.words(name, 1)?.pop()
    }

    /// The first words of a variable's value, at most so many.
    fn words(&mut self, name: &str, most: usize) -> Option<Vec<Word>> {
        let words = match self.known(name)? {
            Value::One(word) => std::slice::from_ref(word),
            Value::List(words) => words.as_slice(),
        };
        let words = &words[..words.len().min(most)];
        let size: usize = words.iter().map(Word::size).sum();
        let words = (size <= self.room).then(|| words.to_vec());
        self.room = self.room.saturating_sub(size);
        words
    }

    fn known(&self, name: &str) -> Option<&Value> {
        let times = self.of_script.times.get(name).copied().unwrap_or_default();
        let is_lost = self.of_script.uncertain.contains(name) || (self.is_in_function && times > 1);
        self.values.get(name).filter(|_| !is_lost && self.room > 0)
    }

    /// A variable with an operator behind its name that says what stands for it where it has no value.
    fn or_default(&mut self, name: &str, operator: &str, expansion: &str, depth: usize) -> Option<Word> {
        let bare = operator.strip_prefix(':').unwrap_or(operator);
        let sign = bare.chars().next().filter(|sign| "-=?".contains(*sign))?;
        let is_assigned = self.so_far.times.contains_key(name) || self.of_script.uncertain.contains(name);
        if is_assigned {
            let word = self.one(name)?;
            if !word.is_empty() || !operator.starts_with(':') {
                return Some(word);
            }
        }
        if name.is_empty() || sign == '?' {
            return None;
        }
        let default = self.text(&bare[1..], depth + 1).filter(Word::is_said)?;
        let default = match is_assigned {
            true => default,
            false => Word::by_default(&default.text(), expansion),
        };
        if sign == '=' {
            self.assign(name, Value::One(default.clone()));
        }
        Some(default)
    }

    /// What a sum comes to.
    fn sum(&mut self, sum: &str, expansion: &str, depth: usize) -> Option<Word> {
        let sum = self.text(&with_signs(sum), depth + 1).filter(Word::is_said)?;
        let number = whole_number(&sum.text())?.to_string();
        Some(match sum.defaults().next() {
            Some(_) => Word::by_default(&number, expansion),
            None => Word::said(&number),
        })
    }

    /// A text within an expansion, with what stands for the expansions in it. `None` where one is not known, and of more quotes than
    /// those around it.
    fn text(&mut self, text: &str, depth: usize) -> Option<Word> {
        let bare = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
        let is_literal = text.starts_with('\'') && text.contains(['$', '`']);
        if depth > DEEPEST || is_literal {
            return None;
        }
        let mut rest = bare('"').or_else(|| bare('\'')).unwrap_or(text);
        let mut word = Word::default();
        while let Some(letter) = rest.chars().next() {
            let end = match length_of(rest) {
                Some(length) => {
                    let mut words = self.expand_within(&rest[..length], depth)?;
                    word.append(words.pop().filter(|_| words.is_empty())?);
                    length
                }
                None if ['"', '\'', '\\'].contains(&letter) => return None,
                None => {
                    word.push(letter);
                    letter.len_utf8()
                }
            };
            rest = &rest[end..];
        }
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(values: &[(&str, &str)]) -> Variables {
        let mut variables = Variables::of(Assigned::default());
        for (name, value) in values {
            variables.assign(name, Value::One(Word::said(value)));
        }
        variables
    }

    #[test]
    fn expansions_stand_for_what_the_script_says() {
        let mut variables = variables(&[("LR", "1e-4"), ("N", "8"), ("EMPTY", "")]);
        for (expansion, value) in [
            ("$LR", Some("1e-4")),
            ("${LR}", Some("1e-4")),
            ("${LR:-2e-4}", Some("1e-4")),
            ("${LR:?say it}", Some("1e-4")),
            ("${EMPTY:-x}", Some("x")),
            ("${EMPTY-x}", Some("")),
            ("${OTHER:-$LR}", Some("1e-4")),
            ("${OTHER:-${ANOTHER:-\"3\"}}", Some("3")),
            ("${1:-'a b'}", Some("a b")),
            ("$((N / 2))", Some("4")),
            ("$(($N * (${M:-3} + 1)))", Some("32")),
            ("$((LR * 2))", None),
            ("$((OTHER * 2))", None),
            ("${OTHER:-'$LR'}", None),
            ("${OTHER:-$(nproc)}", None),
            ("${OTHER:?say it}", None),
            ("${:-x}", None),
            ("${LR%-4}", None),
            ("${LR:0:1}", None),
            ("${!LR}", None),
            ("${#LR}", None),
            ("$OTHER", None),
            ("$1", None),
            ("$@", None),
            ("$(nproc)", None),
            ("`nproc`", None),
        ] {
            let found = variables.expand(expansion).map(|words| words[0].text());
            assert_eq!(found.as_deref(), value, "{expansion}");
        }
    }

    #[test]
    fn a_default_is_told_from_what_the_script_says() {
        let mut variables = variables(&[("LR", "1e-4")]);
        let mut defaults = |expansion: &str| {
            let words = variables.expand(expansion).unwrap();
            words[0].defaults().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(defaults("${LR:-1}"), "");
        assert_eq!(defaults("${N:=8}"), "${N:=8}");
        assert_eq!(defaults("$N"), "${N:=8}");
        assert_eq!(defaults("$((N * 2))"), "$((N * 2))");
    }

    #[test]
    fn a_list_is_its_words_and_its_name_the_first_of_them() {
        let mut variables = variables(&[]);
        let words = ["--a", "1"].map(Word::said);
        variables.assign("ARGS", Value::List(words[..1].to_vec()));
        variables.append("ARGS", Value::List(words[1..].to_vec()));
        assert_eq!(variables.expand("${ARGS[@]}").unwrap(), words);
        assert_eq!(variables.expand("$ARGS").unwrap(), words[..1]);
        variables.append("NEW", Value::List(words.to_vec()));
        assert_eq!(variables.expand("${NEW[@]}"), None);
    }

    #[test]
    fn values_that_grow_without_end_stop() {
        let mut variables = variables(&[("A", "xxxxxxxx")]);
        for _ in 0..200 {
            let Some(words) = variables.expand("${B:-$A$A}") else {
                break;
            };
            variables.assign("A", Value::One(words[0].clone()));
        }
        assert_eq!(variables.expand("$A"), None);
    }
}
