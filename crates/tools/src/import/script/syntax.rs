//! Python as far as the script of a training needs it: statements and expressions, each with the line that it begins in.

use std::ops::Range;
use std::rc::Rc;

use serde_json::Value;

/// A statement.
#[derive(Clone, Debug)]
pub(super) enum Statement {
    /// `first = second = value`.
    Assign {
        targets: Vec<Target>,
        value: Expression,
    },
    /// `target += value`, with the operator in front of the sign of equality.
    Augment {
        target: Target,
        operator: String,
        value: Expression,
    },
    Evaluate(Expression),
    /// Branches of `if`, `elif`, `else` and `match`, of which the first one runs whose condition holds.
    If(Vec<Branch>),
    For {
        target: Target,
        over: Expression,
        body: Vec<Self>,
    },
    While {
        condition: Expression,
        body: Vec<Self>,
    },
    With {
        items: Vec<(Expression, Option<Target>)>,
        body: Vec<Self>,
    },
    /// What runs where nothing fails: the body, `else` and `finally`.
    Try(Vec<Self>),
    Function(Rc<Function>),
    Class(Rc<Class>),
    Return(Option<Expression>),
    /// `break` and `continue`.
    Break,
    Raise,
    Import(Vec<Import>),
}

/// A branch of a condition.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// `None` of `else`.
    pub condition: Option<Expression>,
    pub body: Vec<Statement>,
}

/// A name that an import binds.
#[derive(Clone, Debug)]
pub(super) struct Import {
    pub name: String,
    /// The name in its module, or the module's.
    pub path: String,
    /// The module without what follows its first dot.
    pub package: String,
}

/// A function or a lambda.
#[derive(Debug)]
pub(super) struct Function {
    pub name: String,
    pub line: usize,
    pub parameters: Vec<Parameter>,
    pub body: Vec<Statement>,
}

/// A parameter of a function.
#[derive(Debug)]
pub(super) struct Parameter {
    pub name: String,
    pub default: Option<Expression>,
    pub takes: Takes,
}

/// Arguments that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    One,
    /// `*rest`.
    Positional,
    /// `**rest`.
    Named,
}

/// A class.
#[derive(Debug)]
pub(super) struct Class {
    pub name: String,
    pub bases: Vec<Expression>,
    pub body: Vec<Statement>,
}

/// What a value is assigned to.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Name(String),
    /// `object.name`.
    Attribute(Box<Expression>, String),
    /// `object[key]`.
    Item(Box<Expression>, Box<Expression>),
    Many(Vec<Self>),
    Other,
}

/// An expression.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    /// Line of the code, from 0 on.
    pub line: usize,
    /// Bytes of the code.
    pub bytes: Range<usize>,
    pub form: Form,
}

/// Form of an expression.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Constant(Value),
    /// A text with values in it, by its pieces.
    Text(Vec<Expression>),
    Name(String),
    Attribute(Box<Expression>, String),
    Item(Box<Expression>, Box<Expression>),
    /// `[from:to]` of an item.
    Slice(Option<Box<Expression>>, Option<Box<Expression>>),
    Call(Box<Expression>, Vec<Argument>),
    /// A list, a tuple or a set.
    List(Vec<Expression>),
    /// A map; an entry without a key is a map that is spread.
    Map(Vec<(Option<Expression>, Expression)>),
    /// `*values` in a list or in arguments.
    Spread(Box<Expression>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Binary(Box<Expression>, String, Box<Expression>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Compare(Box<Expression>, String, Box<Expression>),
    /// `value if condition else other`.
    Choice {
        condition: Box<Expression>,
        value: Box<Expression>,
        other: Box<Expression>,
    },
    /// `[value for target in over]`, without a condition.
    Each {
        value: Box<Expression>,
        target: Box<Target>,
        over: Box<Expression>,
    },
    Lambda(Rc<Function>),
    /// What is not evaluated.
    Other,
}

/// An argument of a call.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    Positional(Expression),
    Named(String, Expression),
    /// `**values`.
    Spread(Expression),
}

impl Expression {
    /// Calls `see` with the expression and with all that are parts of it.
    pub(super) fn each<'e>(&'e self, see: &mut dyn FnMut(&'e Self)) {
        see(self);
        match &self.form {
            Form::Constant(_) | Form::Name(_) | Form::Other => {}
            Form::Text(all) | Form::List(all) => all.iter().for_each(|one| one.each(see)),
            Form::Attribute(one, _) | Form::Spread(one) | Form::Not(one) | Form::Negative(one) => one.each(see),
            Form::Item(left, right)
            | Form::Binary(left, _, right)
            | Form::Compare(left, _, right)
            | Form::And(left, right)
            | Form::Or(left, right) => {
                left.each(see);
                right.each(see);
            }
            Form::Slice(from, to) => [from, to].into_iter().flatten().for_each(|one| one.each(see)),
            Form::Call(function, arguments) => {
                function.each(see);
                for argument in arguments {
                    let (Argument::Positional(one) | Argument::Named(_, one) | Argument::Spread(one)) = argument;
                    one.each(see);
                }
            }
            Form::Map(entries) => {
                for (key, value) in entries {
                    key.iter().for_each(|key| key.each(see));
                    value.each(see);
                }
            }
            Form::Choice {
                condition,
                value,
                other,
            } => [condition, value, other].into_iter().for_each(|one| one.each(see)),
            Form::Each { value, target: _, over } => [value, over].into_iter().for_each(|one| one.each(see)),
            Form::Lambda(function) => function.each(see),
        }
    }
}

impl Function {
    /// Calls `see` with all expressions of the body.
    pub(super) fn each<'e>(&'e self, see: &mut dyn FnMut(&'e Expression)) {
        each_of(&self.body, see);
    }
}

fn each_of<'e>(body: &'e [Statement], see: &mut dyn FnMut(&'e Expression)) {
    for statement in body {
        match statement {
            Statement::Assign { value, .. } | Statement::Augment { value, .. } => value.each(see),
            Statement::Evaluate(value) => value.each(see),
            Statement::Return(value) => value.iter().for_each(|value| value.each(see)),
            Statement::If(branches) => {
                for Branch { condition, body } in branches {
                    condition.iter().for_each(|condition| condition.each(see));
                    each_of(body, see);
                }
            }
            Statement::For { over: value, body, .. } | Statement::While { condition: value, body } => {
                value.each(see);
                each_of(body, see);
            }
            Statement::With { items, body } => {
                items.iter().for_each(|(value, _)| value.each(see));
                each_of(body, see);
            }
            Statement::Try(body) => each_of(body, see),
            Statement::Function(function) => function.each(see),
            Statement::Class(_) | Statement::Break | Statement::Raise | Statement::Import(_) => {}
        }
    }
}
