//! Expressions of a script: names, arithmetic, texts, lists, maps, and what calls return.

use std::rc::Rc;

use serde_json::Value;

use super::builtins;
use super::environment::is_environment;
use super::objects::is_self;
use super::operators::{binary, compares};
use super::run::Run;
use super::syntax::{Expression, Form, Target};
use super::value::{Evaluated, Known};

impl Run<'_> {
    /// What an expression comes to; calls in it are made.
    pub(super) fn evaluate(&mut self, expression: &Expression) -> Evaluated {
        if !self.goes_deeper() {
            return Evaluated::UNKNOWN;
        }
        let value = self.form(expression);
        self.leave();
        value
    }

    fn form(&mut self, expression: &Expression) -> Evaluated {
        match &expression.form {
            Form::Constant(value) => value.clone().into(),
            Form::Text(pieces) => self.text(pieces),
            Form::Name(name) => self.name(name),
            Form::Attribute(object, name) => {
                if let Some(value) = self.own_attribute(object, name) {
                    return value;
                }
                let object = self.evaluate(object);
                self.attribute(&object, name)
            }
            Form::Item(whole, key) => self.item(whole, key),
            Form::Call(function, arguments) => self.call(expression, function, arguments),
            Form::List(members) => self.list(members),
            Form::Map(entries) => self.map(entries),
            Form::Not(one) => {
                let one = self.evaluate(one);
                let value = one.truth().map(|truth| Evaluated::from(Value::Bool(!truth)));
                value.unwrap_or(Evaluated::UNKNOWN).because([&one])
            }
            Form::Negative(one) => {
                let one = self.evaluate(one);
                let nothing = Evaluated::from(Value::from(0));
                binary(&nothing, "-", &one).unwrap_or(Evaluated::UNKNOWN)
            }
            Form::Binary(left, operator, right) => {
                let (left, right) = (self.evaluate(left), self.evaluate(right));
                binary(&left, operator, &right).unwrap_or(Evaluated::UNKNOWN)
            }
            Form::And(left, right) => self.either(left, right, false),
            Form::Or(left, right) => self.either(left, right, true),
            Form::Compare(left, operator, right) => {
                let (left, right) = (self.evaluate(left), self.evaluate(right));
                let holds = compares(&left, operator, &right).map(|holds| Evaluated::from(Value::Bool(holds)));
                holds.unwrap_or(Evaluated::UNKNOWN).because([&left, &right])
            }
            Form::Choice {
                condition,
                value,
                other,
            } => {
                let condition = self.evaluate(condition);
                let chosen = match condition.truth() {
                    Some(true) => self.evaluate(value),
                    Some(false) => self.evaluate(other),
                    None => {
                        let (value, other) = (self.evaluate(value), self.evaluate(other));
                        if value.is_same(&other) {
                            value
                        } else {
                            Evaluated::UNKNOWN
                        }
                    }
                };
                chosen.because([&condition])
            }
            Form::Each { value, target, over } => self.each(value, target, over),
            Form::Lambda(function) => Known::Function(Rc::clone(function)).into(),
            Form::Slice(..) | Form::Spread(_) | Form::Other => Evaluated::UNKNOWN,
        }
    }

    /// A text with values in it.
    fn text(&mut self, pieces: &[Expression]) -> Evaluated {
        let pieces: Vec<Evaluated> = pieces.iter().map(|piece| self.evaluate(piece)).collect();
        let texts: Option<String> = pieces.iter().map(builtins::as_text).collect();
        let text = texts.map_or(Evaluated::UNKNOWN, |text| Value::String(text).into());
        text.because(&pieces)
    }

    fn name(&self, name: &str) -> Evaluated {
        match self.lookup(name) {
            Some(value) => value.clone(),
            // A script is looked at as one that is started.
            None if name == "__name__" => Value::from("__main__").into(),
            None => Known::Name(name.to_owned()).into(),
        }
    }

    /// The value of `self.name` in a method.
    fn own_attribute(&self, object: &Expression, name: &str) -> Option<Evaluated> {
        let class = self.own_class().filter(|_| is_self(object))?;
        Some(self.attribute_of(class, name).unwrap_or(Evaluated::UNKNOWN))
    }

    /// The value that an object has under a name.
    pub(super) fn attribute(&self, object: &Evaluated, name: &str) -> Evaluated {
        let value: Evaluated = match &object.known {
            Known::Name(owner) => Known::Name(format!("{owner}.{name}")).into(),
            Known::Map(_) => object.entry(name).cloned().unwrap_or(Evaluated::UNKNOWN),
            Known::Class(class) => self.attribute_of(class, name).unwrap_or(Evaluated::UNKNOWN),
            Known::Result(id) => {
                let call = self.calls.get(*id);
                let bound = call.and_then(|call| call.argument(name, None));
                bound.map_or_else(|| object.known.part(name).into(), |bound| bound.value.clone())
            }
            Known::Part(..) => object.known.part(name).into(),
            Known::Plain(_) | Known::List(_) | Known::Function(_) | Known::Unknown => Evaluated::UNKNOWN,
        };
        value.because([object])
    }

    fn item(&mut self, whole: &Expression, key: &Expression) -> Evaluated {
        let whole = self.evaluate(whole);
        if let Form::Slice(from, to) = &key.form {
            let bounds = [from, to].map(|bound| bound.as_ref().map(|bound| self.evaluate(bound)));
            return builtins::slice(&whole, &bounds).because([&whole]);
        }
        let key = self.evaluate(key);
        let value: Evaluated = match (&whole.known, &key.known) {
            (Known::List(members), Known::Plain(_)) => {
                let index = key.whole().and_then(|index| builtins::index(index, members.len()));
                let member = index.and_then(|index| members.get(index));
                member.cloned().unwrap_or(Evaluated::UNKNOWN)
            }
            (known, Known::Plain(Value::String(name))) if is_environment(known) => {
                self.variable(name).cloned().unwrap_or(Evaluated::UNKNOWN)
            }
            (Known::Map(_), Known::Plain(Value::String(name))) => {
                whole.entry(name).cloned().unwrap_or(Evaluated::UNKNOWN)
            }
            (Known::Result(_) | Known::Part(..), Known::Plain(Value::String(name))) => whole.known.part(name).into(),
            (Known::Result(_) | Known::Part(..), Known::Plain(Value::Number(number))) => {
                whole.known.part(&number.to_string()).into()
            }
            _ => Evaluated::UNKNOWN,
        };
        value.because([&whole, &key])
    }

    fn list(&mut self, members: &[Expression]) -> Evaluated {
        let mut all = Vec::new();
        for member in members {
            match &member.form {
                Form::Spread(inner) => {
                    let inner = self.evaluate(inner);
                    match inner.members() {
                        Some(members) => all.extend(members.iter().map(|member| member.clone().because([&inner]))),
                        None => return Evaluated::UNKNOWN,
                    }
                }
                _ => all.push(self.evaluate(member)),
            }
        }
        Evaluated::list(all)
    }

    fn map(&mut self, entries: &[(Option<Expression>, Expression)]) -> Evaluated {
        let mut all = Vec::new();
        for (key, value) in entries {
            let value = self.evaluate(value);
            let Some(key) = key else {
                match &value.known {
                    Known::Map(inner) => all.extend(inner.iter().cloned()),
                    _ => return Evaluated::UNKNOWN,
                }
                continue;
            };
            match builtins::as_text(&self.evaluate(key)) {
                Some(key) => all.push((key, value)),
                None => return Evaluated::UNKNOWN,
            }
        }
        Evaluated::map(all)
    }

    /// `left or right` where `stops_at` is true, and `left and right` where it is false.
    fn either(&mut self, left: &Expression, right: &Expression, stops_at: bool) -> Evaluated {
        let left = self.evaluate(left);
        let value = match left.truth() {
            Some(truth) if truth == stops_at => left.clone(),
            Some(_) => self.evaluate(right),
            None => {
                let right = self.evaluate(right);
                // The other one may decide by itself, as a condition.
                match right.truth() == Some(stops_at) && matches!(right.known, Known::Plain(Value::Bool(_))) {
                    true => right,
                    false => Evaluated::UNKNOWN,
                }
            }
        };
        value.because([&left])
    }

    /// A list of a value for each member of another.
    fn each(&mut self, value: &Expression, target: &Target, over: &Expression) -> Evaluated {
        let over = self.evaluate(over);
        let Some(members) = over.members() else {
            return Evaluated::UNKNOWN.because([&over]);
        };
        let before = self.frame().clone();
        let mut all = Vec::new();
        for member in members {
            self.assign(target, member.clone(), value.line);
            all.push(self.evaluate(value));
        }
        *self.frame() = before;
        Evaluated::list(all).because([&over])
    }
}
