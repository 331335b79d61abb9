//! Statements of a script: what they give names, and which branches they take.

use std::rc::Rc;

use serde_json::Value;

use super::environment::is_environment;
use super::objects::is_self;
use super::operators::binary;
use super::run::{Assigned, DefinedClass, Flow, Run};
use super::syntax::{Class, Expression, Form, Import, Statement, Target};
use super::trainer::OTHER_MODULES;
use super::value::{Evaluated, Known};

impl Run<'_> {
    /// Walks statements to their end, or to what ends them.
    pub(super) fn walk(&mut self, body: &[Statement]) -> Flow {
        for statement in body {
            if !self.goes_deeper() {
                return Flow::Stop;
            }
            let flow = self.step(statement);
            self.leave();
            if !matches!(flow, Flow::On) {
                return flow;
            }
        }
        Flow::On
    }

    fn step(&mut self, statement: &Statement) -> Flow {
        match statement {
            Statement::Assign { targets, value } => {
                let evaluated = self.evaluate(value);
                for target in targets {
                    self.assign(target, evaluated.clone(), value.line);
                }
            }
            Statement::Augment {
                target,
                operator,
                value,
            } => self.augment(target, operator, value),
            Statement::Evaluate(expression) => {
                self.evaluate(expression);
                if ends_script(expression) {
                    return Flow::Stop;
                }
            }
            Statement::If(branches) => return self.choose(branches),
            Statement::For { target, over, body } => return self.repeat(target, over, body),
            Statement::While { condition, body } => {
                if self.evaluate(condition).truth() != Some(false) {
                    let flow = self.walk(body);
                    self.forget_counted(body);
                    return ended_loop(flow);
                }
            }
            Statement::With { items, body } => {
                for (value, target) in items {
                    let evaluated = self.evaluate(value);
                    if let Some(target) = target {
                        self.assign(target, evaluated, value.line);
                    }
                }
                return self.walk(body);
            }
            // What raises is handled.
            Statement::Try(body) => {
                return match self.walk(body) {
                    Flow::Stop if !self.is_cut() => Flow::On,
                    flow => flow,
                };
            }
            Statement::Function(function) => {
                self.define(None, function);
                let value = Known::Function(Rc::clone(function)).into();
                self.frame().insert(function.name.clone(), value);
            }
            Statement::Class(class) => self.define_class(class),
            Statement::Return(value) => {
                let value = value.as_ref().map(|value| self.evaluate(value));
                return Flow::Return(value.unwrap_or_else(|| Value::Null.into()));
            }
            Statement::Break => return Flow::Break,
            Statement::Raise => return Flow::Stop,
            Statement::Import(imports) => {
                for import in imports {
                    self.packages.insert(import.package.clone());
                    if !import.name.is_empty() {
                        let value = Known::Name(path_of(import)).into();
                        self.frame().insert(import.name.clone(), value);
                    }
                }
            }
        }
        Flow::On
    }

    /// Gives a value to what it is assigned to.
    pub(super) fn assign(&mut self, target: &Target, value: Evaluated, line: usize) {
        match target {
            Target::Name(name) => {
                self.frame().insert(name.clone(), value);
            }
            Target::Many(targets) => {
                for (position, target) in targets.iter().enumerate() {
                    let member: Evaluated = match &value.known {
                        Known::List(members) => members.get(position).cloned().unwrap_or(Evaluated::UNKNOWN),
                        known => known.part(&position.to_string()).into(),
                    };
                    self.assign(target, member.because([&value]), line);
                }
            }
            Target::Attribute(object, name) => {
                if let Some(class) = self.own_class().filter(|_| is_self(object)).cloned() {
                    return self.set_attribute(&class, name, value);
                }
                let owner = self.evaluate(object);
                match &owner.known {
                    Known::Class(class) => self.set_attribute(class, name, value),
                    Known::Map(_) => self.set_entry(object, &owner, name, value),
                    known => {
                        let name = name.clone();
                        self.set_part(known, Assigned { name, value, line });
                    }
                }
            }
            Target::Item(object, key) => {
                let (owner, key) = (self.evaluate(object), self.evaluate(key));
                match (&owner.known, key.text()) {
                    (known, Some(key)) if is_environment(known) => self.set_variable(key, value),
                    (Known::Map(_), Some(key)) => self.set_entry(object, &owner, key, value),
                    (Known::Map(_) | Known::List(_), _) => self.forget(object),
                    _ => {}
                }
            }
            Target::Other => {}
        }
    }

    /// Gives an entry of a map another value, where the map has a name.
    fn set_entry(&mut self, object: &Expression, owner: &Evaluated, key: &str, value: Evaluated) {
        let (Form::Name(name), Known::Map(entries)) = (&object.form, &owner.known) else {
            return;
        };
        let others = entries.iter().filter(|(entry, _)| entry != key).cloned();
        let changed = Evaluated::map(others.chain([(key.to_owned(), value)]).collect());
        self.rebind(name, changed.because([owner]));
    }

    /// Forgets the value that a name has.
    fn forget(&mut self, object: &Expression) {
        if let Form::Name(name) = &object.form {
            self.rebind(name, Evaluated::UNKNOWN);
        }
    }

    fn augment(&mut self, target: &Target, operator: &str, value: &Expression) {
        let added = self.evaluate(value);
        let before = match target {
            Target::Name(name) => self.lookup(name).cloned(),
            Target::Attribute(object, name) => match self.own_class().filter(|_| is_self(object)) {
                Some(class) => self.attribute_of(class, name),
                None => {
                    let object = self.evaluate(object);
                    Some(self.attribute(&object, name))
                }
            },
            Target::Item(..) | Target::Many(_) | Target::Other => None,
        };
        let after = before.and_then(|before| binary(&before, operator, &added));
        self.assign(target, after.unwrap_or(Evaluated::UNKNOWN), value.line);
    }

    fn repeat(&mut self, target: &Target, over: &Expression, body: &[Statement]) -> Flow {
        let evaluated = self.evaluate(over);
        let first = match evaluated.members() {
            Some([]) => return Flow::On,
            Some([one]) => one.clone(),
            Some([first, ..]) => {
                let (location, text) = (self.location(over.line), self.source.excerpt(&over.bytes));
                let ground: Rc<str> =
                    format!("{location}: a loop over `{text}`: the first of its values is taken").into();
                first.clone().assuming(&ground)
            }
            None => Evaluated::UNKNOWN,
        };
        self.assign(target, first.because([&evaluated]), over.line);
        let flow = self.walk(body);
        self.forget_counted(body);
        ended_loop(flow)
    }

    /// Forgets what a loop adds to in each of its rounds, of which one was walked.
    fn forget_counted(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::Augment {
                    target: Target::Name(name),
                    ..
                } => self.rebind(name, Evaluated::UNKNOWN),
                Statement::If(branches) => branches.iter().for_each(|branch| self.forget_counted(&branch.body)),
                Statement::With { body, .. } | Statement::Try(body) => self.forget_counted(body),
                _ => {}
            }
        }
    }

    /// Notes a class with its names, and its methods.
    fn define_class(&mut self, class: &Rc<Class>) {
        let before = std::mem::take(self.frame());
        *self.frame() = before.clone();
        let fields = class.body.iter();
        for statement in fields.filter(|statement| !matches!(statement, Statement::Function(_))) {
            self.walk(std::slice::from_ref(statement));
        }
        let within = std::mem::replace(self.frame(), before);
        let mut entries = Vec::new();
        for name in class_names(&class.body) {
            if let Some(value) = within.get(name) {
                entries.push((name.to_owned(), value.clone()));
            }
        }
        for statement in &class.body {
            if let Statement::Function(function) = statement {
                self.define(Some(class), function);
            }
        }
        let class = Rc::clone(class);
        self.frame()
            .insert(class.name.clone(), Known::Class(Rc::clone(&class)).into());
        self.classes.insert(class.name.clone(), DefinedClass { entries, class });
    }
}

/// What becomes of a block whose loop ended.
fn ended_loop(flow: Flow) -> Flow {
    match flow {
        Flow::Break => Flow::On,
        flow => flow,
    }
}

/// Names that a class gives values, in their order.
fn class_names(body: &[Statement]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for statement in body {
        let Statement::Assign { targets, .. } = statement else {
            continue;
        };
        for target in targets {
            if let Target::Name(name) = target
                && !all.contains(&name.as_str())
            {
                all.push(name);
            }
        }
    }
    all
}

/// Whether an expression ends the script.
fn ends_script(expression: &Expression) -> bool {
    let Form::Call(function, _) = &expression.form else {
        return false;
    };
    match &function.form {
        Form::Name(name) => ["exit", "quit"].contains(&name.as_str()),
        Form::Attribute(object, name) => {
            name == "exit" && matches!(&object.form, Form::Name(module) if module == "sys")
        }
        _ => false,
    }
}

/// The path by which a name is known that is imported. Trainers of some packages have the names of others, which are read: theirs
/// keep the package.
fn path_of(import: &Import) -> String {
    let Import { path, package, .. } = import;
    match OTHER_MODULES.contains(&package.as_str()) && path != package && !path.contains('.') {
        true => format!("{package}.{path}"),
        false => path.clone(),
    }
}
