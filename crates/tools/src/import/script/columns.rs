//! Columns that a script's own functions read of a row, and the layout that they tell.

use std::collections::BTreeSet;

use serde_json::Value;

use super::run::Run;
use super::syntax::{Argument, Class, Expression, Form, Function, Statement};
use peft_tune_core::recipe::DataFormat;

/// Functions that are followed at the most, with those that they hand the row to.
const DEEPEST: usize = 8;

/// Columns of images and sound, and arguments for them.
const BESIDE_TEXT: &[&str] = &["audio", "audios", "speech", "image", "images", "video", "videos"];

/// What a function of the script reads of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadOfRow {
    pub columns: BTreeSet<String>,
    /// Whether texts are made by the chat template of the model.
    pub has_template: bool,
}

impl ReadOfRow {
    /// Columns that a function reads of its first parameter, also through functions that it hands the row to.
    pub(super) fn of(run: &Run<'_>, function: &Function) -> Self {
        let mut all = Self::default();
        all.add(run, function, &mut BTreeSet::new());
        all
    }

    /// Adds what a function reads; `followed` are the lines of those that lead to it, and of those that were added before.
    fn add(&mut self, run: &Run<'_>, function: &Function, followed: &mut BTreeSet<usize>) {
        let Some(row) = function.parameters.first() else {
            return;
        };
        if followed.len() >= DEEPEST || !followed.insert(function.line) {
            return;
        }
        let is_row = |one: &Expression| matches!(&one.form, Form::Name(name) if *name == row.name);
        let mut handed_on = BTreeSet::new();
        function.each(&mut |expression| match &expression.form {
            Form::Item(whole, key) if is_row(whole) => self.columns.extend(text_of(key)),
            Form::Call(callee, arguments) => match &callee.form {
                Form::Attribute(object, name) if name == "get" && is_row(object) => {
                    if let Some(Argument::Positional(key)) = arguments.first() {
                        self.columns.extend(text_of(key));
                    }
                }
                Form::Attribute(_, name) => self.has_template |= name == "apply_chat_template",
                Form::Name(name) => {
                    let has_row = |one: &Argument| matches!(one, Argument::Positional(one) if is_row(one));
                    if arguments.iter().any(has_row) {
                        handed_on.insert(name.clone());
                    }
                }
                _ => {}
            },
            _ => {}
        });
        for function in handed_on.iter().filter_map(|name| run.function(name)) {
            self.add(run, function, followed);
        }
    }

    /// Whether images or sound are read of a row.
    pub(super) fn reads_no_text_alone(&self) -> bool {
        BESIDE_TEXT.iter().any(|name| self.columns.contains(*name))
    }

    /// The layout that the columns are of.
    pub(super) fn format(&self) -> DataFormat {
        let has = |names: &[&str]| names.iter().all(|name| self.columns.contains(*name));
        let formats: [(&[&str], DataFormat); 5] = [
            (&["messages"], DataFormat::Messages),
            (&["conversations"], DataFormat::Sharegpt),
            (&["prompt", "completion"], DataFormat::PromptCompletion),
            (&["instruction", "output"], DataFormat::Alpaca),
            (&["text"], DataFormat::Text),
        ];
        let found = formats.into_iter().find(|(names, _)| has(names));
        found.map_or(DataFormat::Auto, |(_, format)| format)
    }
}

/// Whether a function takes images or sound out of anything, or hands them on.
pub(super) fn handles_more_than_text(function: &Function) -> bool {
    let is_such = |name: &str| BESIDE_TEXT.contains(&name);
    let mut found = false;
    function.each(&mut |expression| match &expression.form {
        Form::Item(_, key) => found |= text_of(key).is_some_and(|name| is_such(&name)),
        Form::Call(_, arguments) => {
            found |= arguments
                .iter()
                .any(|one| matches!(one, Argument::Named(name, _) if is_such(name)));
        }
        _ => {}
    });
    found
}

/// Whether a method of a class does so.
pub(super) fn has_more_than_text(class: &Class) -> bool {
    class.body.iter().any(|statement| match statement {
        Statement::Function(method) => handles_more_than_text(method),
        _ => false,
    })
}

fn text_of(key: &Expression) -> Option<String> {
    match &key.form {
        Form::Constant(Value::String(text)) => Some(text.clone()),
        _ => None,
    }
}
