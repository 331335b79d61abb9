//! A script as it would run, without running anything: names with their values, and the calls that were made of libraries.
//!
//! Statements are walked in their order, functions of the script where they are called. What cannot be evaluated is a value that is not
//! known, and goes on as such.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use super::source::Source;
use super::syntax::{Class, Function, Statement, Takes};
use super::value::{CallId, Evaluated, Known};

/// Statements and expressions that are looked at, those of functions as often as these are called.
const MOST_VISITS: usize = 100_000;

/// Depth of nested statements, expressions and calls below which nothing is evaluated.
const DEEPEST: usize = 120;

/// Functions of the script that may be under way at once.
const MOST_FRAMES: usize = 12;

/// Names with their values.
pub(super) type Frame = BTreeMap<String, Evaluated>;

/// What ends a block.
#[derive(Clone, Debug)]
pub(super) enum Flow {
    /// The block was walked to its end.
    On,
    /// `break`, `continue`.
    Break,
    /// What ends the script, or leads to who handles an exception.
    Stop,
    Return(Evaluated),
}

/// An argument of a call, with where it stands and how it is written.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub value: Evaluated,
    pub line: usize,
    pub text: String,
}

/// Arguments of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub positional: Vec<Bound>,
    pub named: Vec<(String, Bound)>,
    /// Lists and maps that are spread in and not known.
    pub unknown: Vec<Bound>,
}

/// A call of a library.
#[derive(Clone, Debug)]
pub(super) struct Called {
    /// The function's name, with what stands in front of it: `FastLanguageModel.from_pretrained`.
    pub function: String,
    /// What the function is a method of, where that is a value.
    pub receiver: Option<Evaluated>,
    pub arguments: Arguments,
    pub line: usize,
    /// Class of the script that stands between, where one does.
    pub subclass: Option<Subclass>,
}

/// A class of the script that builds on the library's class which a call makes an object of.
#[derive(Clone, Debug)]
pub(super) struct Subclass {
    pub name: String,
    /// Number of the call's named arguments that are fields of the class. They stand first.
    pub fields: usize,
}

/// A value that is given to a name of what a call returned.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub name: String,
    pub value: Evaluated,
    pub line: usize,
}

/// A variable of the environment with a value that a script gives it.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub name: String,
    pub value: Evaluated,
    /// Number of calls of libraries before it.
    pub calls: usize,
}

/// A class of the script, as far as it was walked.
#[derive(Clone, Debug)]
pub(super) struct DefinedClass {
    pub class: Rc<Class>,
    pub entries: Vec<(String, Evaluated)>,
}

/// A script, and what is known of it.
pub(super) struct Run<'s> {
    pub source: &'s Source,
    /// Calls in the order in which they run.
    pub calls: Vec<Called>,
    /// Packages that are imported.
    pub packages: BTreeSet<String>,
    pub assigned: Vec<Assigned>,
    /// Variables of the environment, in the order in which they are set.
    pub(super) variables: Vec<Variable>,
    pub(super) classes: BTreeMap<String, DefinedClass>,
    /// Functions and methods in the order of the text.
    defined: Vec<(Option<Rc<Class>>, Rc<Function>)>,
    /// Lines of the functions that were called.
    entered: BTreeSet<usize>,
    frames: Vec<Frame>,
    /// Classes whose methods are under way.
    within: Vec<Rc<Class>>,
    visits: usize,
    depth: usize,
}

impl<'s> Run<'s> {
    /// Walks a script, and then the functions that nothing in it called, where it made no trainer before.
    pub(super) fn of(source: &'s Source, statements: &[Statement]) -> Self {
        let mut run = Self {
            source,
            calls: Vec::new(),
            packages: BTreeSet::new(),
            assigned: Vec::new(),
            variables: Vec::new(),
            classes: BTreeMap::new(),
            defined: Vec::new(),
            entered: BTreeSet::new(),
            frames: vec![Frame::new()],
            within: Vec::new(),
            visits: 0,
            depth: 0,
        };
        run.walk(statements);
        if run.packages.contains("marimo") {
            run.walk_cells();
        }
        for (class, function) in run.defined.clone() {
            if run.has_trainer() {
                break;
            }
            if !run.entered.contains(&function.line) {
                run.enter(&function, class, Arguments::default());
            }
        }
        run
    }

    /// Walks the cells of a notebook of marimo, which are functions that are all called alike. Their names are those of the notebook:
    /// what one cell makes, others take by its name.
    fn walk_cells(&mut self) {
        for (class, function) in self.defined.clone() {
            if class.is_none() && function.name == "_" {
                self.entered.insert(function.line);
                self.walk(&function.body);
            }
        }
    }

    /// Whether some call made a trainer.
    fn has_trainer(&self) -> bool {
        self.calls.iter().any(Called::makes_trainer)
    }

    /// Whether nothing more is looked at, because there was too much of it.
    pub(super) fn is_cut(&self) -> bool {
        self.visits >= MOST_VISITS
    }

    /// Begins what lies one level deeper; `false` where there is nothing left to look at. [`Run::leave`] ends it.
    pub(super) fn goes_deeper(&mut self) -> bool {
        self.visits += 1;
        if self.is_cut() || self.depth >= DEEPEST {
            return false;
        }
        self.depth += 1;
        true
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Place of a line, as messages have it.
    pub(super) fn location(&self, line: usize) -> String {
        self.source.location(line)
    }

    /// The names of the function that is under way, or of the script.
    pub(super) fn frame(&mut self) -> &mut Frame {
        if self.frames.is_empty() {
            self.frames.push(Frame::new());
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    /// The value of a name, in the function that is under way or in the script.
    pub(super) fn lookup(&self, name: &str) -> Option<&Evaluated> {
        let own = self.frames.last().and_then(|frame| frame.get(name));
        own.or_else(|| self.frames.first()?.get(name))
    }

    /// Gives a name another value, where the name has one.
    pub(super) fn rebind(&mut self, name: &str, value: Evaluated) {
        let own = self.frames.iter().rposition(|frame| frame.contains_key(name));
        if let Some(frame) = own.and_then(|own| self.frames.get_mut(own)) {
            frame.insert(name.to_owned(), value);
        }
    }

    /// Notes a function or a method as defined.
    pub(super) fn define(&mut self, class: Option<&Rc<Class>>, function: &Rc<Function>) {
        self.defined.push((class.cloned(), Rc::clone(function)));
    }

    /// The function or method of that name that was defined last.
    pub(super) fn function(&self, name: &str) -> Option<&Rc<Function>> {
        let mut latest = self.defined.iter().rev().map(|(_, function)| function);
        latest.find(|function| function.name == name)
    }

    /// The class whose method is under way.
    pub(super) fn own_class(&self) -> Option<&Rc<Class>> {
        self.within.last()
    }

    /// The value that objects of a class of the script have under a name: one that a method gave it, or the class's own.
    pub(super) fn attribute_of(&self, class: &Class, name: &str) -> Option<Evaluated> {
        let own = self.frames.first()?.get(&attribute_key(class, name)).cloned();
        own.or_else(|| {
            let mut fields = self.fields_of(class).into_iter().rev();
            fields.find(|(field, _)| field == name).map(|(_, value)| value)
        })
    }

    /// Gives objects of a class of the script a value under a name.
    pub(super) fn set_attribute(&mut self, class: &Class, name: &str, value: Evaluated) {
        let key = attribute_key(class, name);
        if let Some(frame) = self.frames.first_mut() {
            frame.insert(key, value);
        }
    }

    /// Notes a call of a library, and gives what it returned.
    pub(super) fn record(&mut self, call: Called) -> Evaluated {
        let id: CallId = self.calls.len();
        let result = Evaluated::from(Known::Result(id)).because(&call.receiver);
        self.calls.push(call);
        result
    }

    /// Notes that a name of what a call returned got a value.
    pub(super) fn set_part(&mut self, object: &Known, assigned: Assigned) {
        if let Known::Result(id) = object
            && let Some(call) = self.calls.get_mut(*id)
        {
            let bound = Bound {
                value: assigned.value.clone(),
                line: assigned.line,
                text: String::new(),
            };
            call.arguments.named.push((assigned.name.clone(), bound));
        }
        self.assigned.push(assigned);
    }

    /// The call that a value is the result of.
    pub(super) fn result(&self, value: &Evaluated) -> Option<&Called> {
        match &value.known {
            Known::Result(id) => self.calls.get(*id),
            _ => None,
        }
    }

    /// Runs a function of the script, of a class where it is a method.
    pub(super) fn enter(
        &mut self,
        function: &Rc<Function>,
        class: Option<Rc<Class>>,
        arguments: Arguments,
    ) -> Evaluated {
        self.entered.insert(function.line);
        if self.frames.len() >= MOST_FRAMES || !self.goes_deeper() {
            return Evaluated::UNKNOWN;
        }
        let frame = self.bound(function, class.is_some(), arguments);
        self.frames.push(frame);
        let is_method = class.is_some();
        self.within.extend(class);
        let flow = self.walk(&function.body);
        if is_method {
            self.within.pop();
        }
        self.frames.pop();
        self.leave();
        match flow {
            Flow::Return(value) => value,
            Flow::On | Flow::Break => Value::Null.into(),
            Flow::Stop => Evaluated::UNKNOWN,
        }
    }

    /// Parameters with their arguments, or their defaults.
    fn bound(&mut self, function: &Function, is_method: bool, arguments: Arguments) -> Frame {
        let mut positional = arguments.positional.into_iter().map(|bound| bound.value);
        let mut named: Vec<(String, Evaluated)> = arguments
            .named
            .into_iter()
            .map(|(name, bound)| (name, bound.value))
            .collect();
        let is_spread = !arguments.unknown.is_empty();
        let mut frame = Frame::new();
        let first = function.parameters.first();
        let has_object = is_method && first.is_some_and(|first| ["self", "cls"].contains(&first.name.as_str()));
        for parameter in function.parameters.iter().skip(usize::from(has_object)) {
            let value = match parameter.takes {
                Takes::Positional => Evaluated::list(positional.by_ref().collect()),
                Takes::Named => Evaluated::map(std::mem::take(&mut named)),
                Takes::One => {
                    let at = named.iter().position(|(name, _)| *name == parameter.name);
                    let given = at.map(|at| named.remove(at).1).or_else(|| positional.next());
                    match (given, &parameter.default) {
                        (Some(value), _) => value,
                        (None, Some(default)) if !is_spread => self.evaluate(default),
                        (None, _) => Evaluated::UNKNOWN,
                    }
                }
            };
            frame.insert(parameter.name.clone(), value);
        }
        frame
    }
}

/// The name that an attribute of a class's objects has among the script's own.
fn attribute_key(class: &Class, name: &str) -> String {
    format!("{}.self.{name}", class.name)
}

impl Arguments {
    /// Adds an argument, by its name where it has one.
    pub(super) fn add(&mut self, name: Option<String>, bound: Bound) {
        match name {
            Some(name) => self.named.push((name, bound)),
            None => self.positional.push(bound),
        }
    }
}

impl Called {
    /// The function's name alone.
    pub(super) fn short_name(&self) -> &str {
        self.function.rsplit('.').next().unwrap_or_default()
    }

    /// Whether the call makes a trainer, by its name.
    pub(super) fn makes_trainer(&self) -> bool {
        let name = self.short_name();
        // `PatchDPOTrainer` changes one.
        name.ends_with("Trainer") && !name.starts_with("Patch")
    }

    /// The name in front of the function's: a class or a module.
    pub(super) fn owner(&self) -> &str {
        self.function.rsplit('.').nth(1).unwrap_or_default()
    }

    /// The argument of that name, or the one at that position.
    pub(super) fn argument(&self, name: &str, position: Option<usize>) -> Option<&Bound> {
        let named = self.arguments.named.iter().rev().find(|(own, _)| own == name);
        named
            .map(|(_, bound)| bound)
            .or_else(|| self.arguments.positional.get(position?))
    }

    /// Arguments that a class of the script alone gives, by a field that nothing else writes.
    pub(super) fn defaults(&self) -> BTreeSet<&str> {
        let fields = self.subclass.as_ref().map_or(0, |class| class.fields);
        let names = || self.arguments.named.iter().map(|(name, _)| name.as_str());
        let written: BTreeSet<&str> = names().skip(fields).collect();
        names().take(fields).filter(|name| !written.contains(name)).collect()
    }

    /// The argument of that name, or the one at its position among the names of positional arguments.
    pub(super) fn argument_in(&self, name: &str, positions: &[&str]) -> Option<&Bound> {
        self.argument(name, positions.iter().position(|own| *own == name))
    }
}
