//! Options of a script: what a parser of its command line gives where nobody starts it with others.

use std::rc::Rc;

use serde_json::Value;

use super::builtins;
use super::run::{Arguments, Bound, Called, Run};
use super::syntax::Expression;
use super::value::{Evaluated, Known};

/// Methods of parsers that give objects of the classes that the parser was made of.
const GIVE_OBJECTS: &[&str] = &[
    "parse",
    "parse_args_into_dataclasses",
    "parse_args_and_config",
    "parse_dict",
    "parse_json_file",
    "parse_yaml_file",
];

/// End of a line on an option that has its default.
pub(in crate::import) const OPTION_DEFAULT: &str = " is an option of the script: its default is taken";

impl Run<'_> {
    /// What a method of a parser gives; `None` of other methods.
    pub(super) fn options(&mut self, receiver: &Evaluated, method: &str, expression: &Expression) -> Option<Evaluated> {
        let Known::Result(id) = &receiver.known else {
            return None;
        };
        let parser = self.calls.get(*id)?;
        let kind = parser.short_name().to_owned();
        let classes = parser.argument("dataclass_types", Some(0));
        let classes = classes.map(|bound| bound.value.clone());
        match (kind.as_str(), method) {
            ("ArgumentParser", "parse_args") => Some(self.of_arguments()),
            ("ArgumentParser", "parse_known_args") => {
                Some(Evaluated::list(vec![self.of_arguments(), Evaluated::list(Vec::new())]))
            }
            (name, _) if name.ends_with("Parser") && GIVE_OBJECTS.contains(&method) => {
                Some(self.of_classes(&classes?, method, expression))
            }
            _ => None,
        }
    }

    /// Options that were added to a parser, each with its default.
    fn of_arguments(&self) -> Evaluated {
        let added = self.calls.iter();
        let added = added.filter(|call| call.short_name() == "add_argument" && call.receiver.is_some());
        Evaluated::map(added.filter_map(|call| self.option(call)).collect())
    }

    fn option(&self, call: &Called) -> Option<(String, Evaluated)> {
        let texts = call.arguments.positional.iter().filter_map(|bound| bound.value.text());
        let names: Vec<&str> = texts.collect();
        let written = names.iter().find(|name| name.starts_with("--")).or(names.first())?;
        let name = match call.argument("dest", None).and_then(|bound| bound.value.text()) {
            Some(name) => name.to_owned(),
            None => written.trim_start_matches('-').replace('-', "_"),
        };
        let of = |argument: &str| call.argument(argument, None).map(|bound| &bound.value);
        let is_needed = of("required").and_then(Evaluated::truth) == Some(true) || !written.starts_with('-');
        let value = match (of("default"), of("action").and_then(Evaluated::text)) {
            (Some(default), _) => typed(default, of("type")),
            (None, Some("store_true")) => Value::Bool(false).into(),
            (None, Some("store_false")) => Value::Bool(true).into(),
            // Who starts the script gives it.
            (None, _) if is_needed => return Some((name, Evaluated::UNKNOWN)),
            (None, _) => Value::Null.into(),
        };
        Some((name, value.assuming(&self.default_of(written, call.line))))
    }

    fn default_of(&self, option: &str, line: usize) -> Rc<str> {
        let location = self.location(line);
        format!("{location}: `{option}`{OPTION_DEFAULT}").into()
    }

    /// Objects of the classes that a parser was made of, with the defaults of their fields.
    fn of_classes(&mut self, classes: &Evaluated, method: &str, expression: &Expression) -> Evaluated {
        let all: Vec<Evaluated> = match classes.members() {
            Some(members) => members.to_vec(),
            None => vec![classes.clone()],
        };
        let mut objects: Vec<Evaluated> = all.iter().map(|class| self.of_class(class, expression)).collect();
        match (method, objects.len()) {
            ("parse", 1) => objects.remove(0),
            _ => Evaluated::list(objects),
        }
    }

    fn of_class(&mut self, class: &Evaluated, expression: &Expression) -> Evaluated {
        match &class.known {
            Known::Class(class) => {
                let object = self.object(expression, class, Arguments::default());
                self.with_defaults(object, expression.line)
            }
            Known::Name(name) => {
                let command_line = Bound {
                    value: Evaluated::UNKNOWN,
                    line: expression.line,
                    text: self.source.excerpt(&expression.bytes),
                };
                self.record(Called {
                    function: name.clone(),
                    receiver: None,
                    arguments: Arguments {
                        unknown: vec![command_line],
                        ..Arguments::default()
                    },
                    line: expression.line,
                    subclass: None,
                })
            }
            _ => Evaluated::UNKNOWN,
        }
    }

    /// An object whose values are said to be defaults.
    fn with_defaults(&mut self, object: Evaluated, line: usize) -> Evaluated {
        match &object.known {
            Known::Map(entries) => {
                let entries = entries.iter().map(|(name, value)| {
                    let value = value.clone().assuming(&self.default_of(name, line));
                    (name.clone(), value)
                });
                Evaluated::map(entries.collect())
            }
            Known::Result(id) => {
                let grounds: Vec<Rc<str>> = match self.calls.get(*id) {
                    Some(call) => {
                        let names = call.arguments.named.iter();
                        names.map(|(name, _)| self.default_of(name, line)).collect()
                    }
                    None => Vec::new(),
                };
                if let Some(call) = self.calls.get_mut(*id) {
                    for ((_, bound), ground) in call.arguments.named.iter_mut().zip(&grounds) {
                        bound.value = bound.value.clone().assuming(ground);
                    }
                }
                object
            }
            _ => object,
        }
    }
}

/// The default of an option of a type, which parsers give a text that stands for it.
fn typed(default: &Evaluated, kind: Option<&Evaluated>) -> Evaluated {
    let name = match kind.map(|kind| &kind.known) {
        Some(Known::Name(name)) if ["int", "float"].contains(&name.as_str()) && default.text().is_some() => name,
        _ => return default.clone(),
    };
    let bound = Bound {
        value: default.clone(),
        line: 0,
        text: String::new(),
    };
    let arguments = Arguments {
        positional: vec![bound],
        ..Arguments::default()
    };
    builtins::of_library(name, &arguments).unwrap_or(Evaluated::UNKNOWN)
}
