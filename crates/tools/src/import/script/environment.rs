//! Variables of the environment that a script sets, and what it then reads of them.

use super::run::{Arguments, Run, Variable};
use super::value::{Evaluated, Known};

/// Names of the map of all variables, by how it was imported.
const MAPS: [&str; 2] = ["os.environ", "environ"];

/// Functions that read a variable.
pub(super) const READ: &[&str] = &["os.getenv", "getenv", "os.environ.get", "environ.get"];

/// Whether a value is the map of all variables.
pub(super) fn is_environment(known: &Known) -> bool {
    matches!(known, Known::Name(name) if MAPS.contains(&name.as_str()))
}

impl Run<'_> {
    /// Gives a variable another value.
    pub(super) fn set_variable(&mut self, name: &str, value: Evaluated) {
        self.variables.push(Variable {
            name: name.to_owned(),
            value,
            calls: self.calls.len(),
        });
    }

    /// The value that a variable has now, where the script gave it one.
    pub(super) fn variable(&self, name: &str) -> Option<&Evaluated> {
        let latest = self.variables.iter().rev().find(|one| one.name == name);
        latest.map(|one| &one.value)
    }

    /// Variables that were set before the call of that number, the latest value last.
    pub(super) fn variables_before(&self, call: usize) -> impl Iterator<Item = &Variable> {
        self.variables.iter().filter(move |one| one.calls <= call)
    }

    /// What a function of the environment comes to: a variable that the script set is read, or some are set.
    pub(super) fn of_environment(&mut self, function: &str, arguments: &Arguments) -> Option<Evaluated> {
        let all: Vec<&Evaluated> = arguments.positional.iter().map(|bound| &bound.value).collect();
        let name = all.first().and_then(|first| first.text());
        if READ.contains(&function) {
            return self.variable(name?).cloned();
        }
        match MAPS.iter().find_map(|map| function.strip_prefix(map)) {
            Some(".setdefault") if self.variable(name?).is_none() => self.set_variable(name?, (*all.get(1)?).clone()),
            Some(".update") => {
                let entries = match all.first().map(|first| &first.known) {
                    Some(Known::Map(entries)) => entries.as_slice(),
                    _ => &[],
                };
                for (name, value) in entries {
                    self.set_variable(name, value.clone());
                }
                for (name, bound) in &arguments.named {
                    self.set_variable(name, bound.value.clone());
                }
            }
            _ if ["os.putenv", "putenv"].contains(&function) => self.set_variable(name?, (*all.get(1)?).clone()),
            _ => {}
        }
        None
    }
}
