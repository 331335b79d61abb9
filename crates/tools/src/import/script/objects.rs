//! Objects of classes that a script defines: fields, methods, and calls of the library's class that one builds on.

use std::rc::Rc;

use super::builtins;
use super::calls::COLLATOR;
use super::run::{Arguments, Bound, Called, Run, Subclass};
use super::syntax::{Class, Expression, Form, Function, Statement};
use super::value::{Evaluated, Known};

/// Classes of the script that one may build on, one on the other.
const MOST_BASES: usize = 8;

impl Run<'_> {
    /// An object of a class of the script: what its `__init__` gives it, its fields, or a call of the library's class that it builds on.
    pub(super) fn object(&mut self, expression: &Expression, class: &Rc<Class>, arguments: Arguments) -> Evaluated {
        if let Some(base) = self.library_base(class) {
            let mut all = arguments;
            let fields = self.fields_of(class);
            let subclass = Subclass {
                name: class.name.clone(),
                fields: fields.len(),
            };
            let own = fields.into_iter().map(|(name, value)| {
                let bound = Bound {
                    value,
                    line: expression.line,
                    text: String::new(),
                };
                (name, bound)
            });
            all.named = own.chain(std::mem::take(&mut all.named)).collect();
            return self.record(Called {
                function: base,
                receiver: None,
                arguments: all,
                line: expression.line,
                subclass: Some(subclass),
            });
        }
        if let Some(init) = method_of(class, "__init__") {
            self.enter(&init, Some(Rc::clone(class)), arguments);
            return Known::Class(Rc::clone(class)).into();
        }
        let mut fields = self.fields_of(class);
        for (position, bound) in arguments.positional.into_iter().enumerate() {
            if let Some((_, value)) = fields.get_mut(position) {
                *value = bound.value;
            }
        }
        fields.extend(arguments.named.into_iter().map(|(name, bound)| (name, bound.value)));
        // Methods are found by the class, and so is what an object does that is called itself.
        match fields.is_empty() || method_of(class, "__call__").is_some() {
            true => Known::Class(Rc::clone(class)).into(),
            false => Evaluated::map(fields),
        }
    }

    /// What a field of a class has where nothing else is said.
    pub(super) fn field(&mut self, arguments: &Arguments) -> Evaluated {
        let named = |name: &str| {
            let found = arguments.named.iter().find(|(own, _)| own == name);
            found.map(|(_, bound)| bound.value.clone())
        };
        if let Some(default) = named("default") {
            return default;
        }
        match named("default_factory").map(|factory| factory.known) {
            Some(Known::Function(factory)) => self.enter(&factory, None, Arguments::default()),
            Some(Known::Name(name)) => builtins::of_library(&name, &Arguments::default()).unwrap_or(Evaluated::UNKNOWN),
            Some(_) => Evaluated::UNKNOWN,
            None => {
                let first = arguments.positional.first();
                first.map_or(Evaluated::UNKNOWN, |bound| bound.value.clone())
            }
        }
    }

    /// Names and values of a class, those of the classes of the script that it builds on first.
    pub(super) fn fields_of(&self, class: &Class) -> Vec<(String, Evaluated)> {
        let mut all: Vec<(String, Evaluated)> = Vec::new();
        let bases = class.bases.iter().filter_map(|base| match &base.form {
            Form::Name(name) if *name != class.name => self.classes.get(name),
            _ => None,
        });
        for base in bases {
            all.extend(base.entries.iter().cloned());
        }
        if let Some(own) = self.classes.get(&class.name) {
            all.extend(own.entries.iter().cloned());
        }
        all
    }

    /// The class of a library that a class of the script builds on, where it is one that trains, sets a training or puts rows together.
    pub(super) fn library_base(&self, class: &Class) -> Option<String> {
        let mut class = class;
        for _ in 0..MOST_BASES {
            let name = class.bases.iter().find_map(|base| match &base.form {
                Form::Name(name) => Some(name.as_str()),
                Form::Attribute(_, name) => Some(name.as_str()),
                _ => None,
            })?;
            if let Some(own) = self.classes.get(name) {
                class = &own.class;
                continue;
            }
            let path = match self.lookup(name).map(|value| &value.known) {
                Some(Known::Name(path)) => path.clone(),
                _ => name.to_owned(),
            };
            let is_of_training = ["Trainer", "Arguments", "Config"].iter().any(|end| path.ends_with(end));
            return (is_of_training || path.contains(COLLATOR)).then_some(path);
        }
        None
    }
}

/// Whether an expression is the object that a method belongs to.
pub(super) fn is_self(object: &Expression) -> bool {
    match &object.form {
        Form::Name(name) => ["self", "cls"].contains(&name.as_str()),
        _ => false,
    }
}

/// The method of a class of the script.
pub(super) fn method_of(class: &Class, name: &str) -> Option<Rc<Function>> {
    class.body.iter().find_map(|statement| match statement {
        Statement::Function(function) if function.name == name => Some(Rc::clone(function)),
        _ => None,
    })
}
