//! Calls in a script: of its own functions, of Python's, and of libraries, which are noted.

use std::rc::Rc;

use super::builtins;
use super::objects::{is_self, method_of};
use super::run::{Arguments, Bound, Called, Run};
use super::syntax::{Argument, Expression, Form};
use super::value::{Evaluated, Known};

/// Functions that say what a field of a class has where nothing else is said.
const FIELDS: &[&str] = &["field", "dataclasses.field", "Field", "pydantic.Field"];

/// What an argument is spread from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spreads {
    Nothing,
    List,
    Map,
}

impl Run<'_> {
    /// The arguments of a call.
    fn arguments(&mut self, arguments: &[Argument]) -> Arguments {
        let mut all = Arguments::default();
        for argument in arguments {
            let (expression, name, spreads) = match argument {
                Argument::Positional(one) => match &one.form {
                    Form::Spread(inner) => (&**inner, None, Spreads::List),
                    _ => (one, None, Spreads::Nothing),
                },
                Argument::Named(name, one) => (one, Some(name.clone()), Spreads::Nothing),
                Argument::Spread(one) => (one, None, Spreads::Map),
            };
            let value = self.evaluate(expression);
            let (line, text) = (expression.line, self.source.excerpt(&expression.bytes));
            let bound = |value: Evaluated| Bound {
                value,
                line,
                text: text.clone(),
            };
            let parts: Option<Vec<(Option<String>, Evaluated)>> = match (&value.known, spreads) {
                (Known::Map(entries), Spreads::Map) => {
                    let parts = entries.iter().map(|(name, one)| (Some(name.clone()), one.clone()));
                    Some(parts.collect())
                }
                (Known::List(members), Spreads::List) => Some(members.iter().map(|one| (None, one.clone())).collect()),
                _ => None,
            };
            match (spreads, parts) {
                (Spreads::Nothing, _) => all.add(name, bound(value)),
                (_, Some(parts)) => {
                    for (name, one) in parts {
                        all.add(name, bound(one.because([&value])));
                    }
                }
                (_, None) => all.unknown.push(bound(value)),
            }
        }
        all
    }

    pub(super) fn call(&mut self, expression: &Expression, function: &Expression, arguments: &[Argument]) -> Evaluated {
        let Form::Attribute(object, method) = &function.form else {
            let callee = self.evaluate(function);
            let arguments = self.arguments(arguments);
            return self.called(expression, &callee, arguments);
        };
        if let Some(class) = self.own_class().filter(|_| is_self(object)).cloned() {
            let arguments = self.arguments(arguments);
            return match method_of(&class, method) {
                Some(own) => self.enter(&own, Some(class), arguments),
                None => {
                    let callee = self.attribute_of(&class, method).unwrap_or(Evaluated::UNKNOWN);
                    self.called(expression, &callee, arguments)
                }
            };
        }
        let receiver = self.evaluate(object);
        let arguments = self.arguments(arguments);
        let (value, changed) = self.method(expression, &receiver, method, arguments);
        if let (Some(changed), Form::Name(name)) = (changed, &object.form) {
            self.rebind(name, changed);
        }
        value
    }

    /// What a function returns that a value is.
    fn called(&mut self, expression: &Expression, callee: &Evaluated, arguments: Arguments) -> Evaluated {
        match &callee.known {
            Known::Function(function) => self.enter(function, None, arguments).because([callee]),
            Known::Class(class) => self.object(expression, class, arguments),
            Known::Name(name) if FIELDS.contains(&name.as_str()) => self.field(&arguments),
            Known::Name(name) => match self
                .of_environment(name, &arguments)
                .or_else(|| builtins::of_library(name, &arguments))
            {
                Some(value) => value,
                None => self.recorded(expression, name.clone(), None, arguments),
            },
            // The value itself is called, as a tokenizer is.
            _ => self.recorded(expression, String::new(), Some(callee.clone()), arguments),
        }
    }

    /// What a method of a value returns, and what the value then is where the method changes it.
    fn method(
        &mut self,
        expression: &Expression,
        receiver: &Evaluated,
        method: &str,
        arguments: Arguments,
    ) -> (Evaluated, Option<Evaluated>) {
        let value = match &receiver.known {
            Known::Name(owner) => {
                let callee: Evaluated = Known::Name(format!("{owner}.{method}")).into();
                self.called(expression, &callee, arguments)
            }
            Known::Class(class) => match method_of(class, method) {
                Some(own) => self.enter(&own, Some(Rc::clone(class)), arguments),
                // Of the class that it builds on.
                None => match self.library_base(class) {
                    Some(base) => self.recorded(expression, format!("{base}.{method}"), None, arguments),
                    None => Evaluated::UNKNOWN,
                },
            },
            Known::Plain(_) | Known::List(_) | Known::Map(_) => {
                if let Some(Known::Function(own)) = receiver.entry(method).map(|entry| &entry.known) {
                    return (self.enter(own, None, arguments), None);
                }
                let (value, changed) = builtins::of_value(receiver, method, &arguments);
                return (value.because([receiver]), changed);
            }
            Known::Result(_) | Known::Part(..) | Known::Function(_) | Known::Unknown => {
                match self.options(receiver, method, expression) {
                    Some(options) => options,
                    None => self.recorded(expression, method.to_owned(), Some(receiver.clone()), arguments),
                }
            }
        };
        (value, None)
    }

    fn recorded(
        &mut self,
        expression: &Expression,
        function: String,
        receiver: Option<Evaluated>,
        arguments: Arguments,
    ) -> Evaluated {
        self.record(Called {
            function,
            receiver,
            arguments,
            line: expression.line,
            subclass: None,
        })
    }
}
