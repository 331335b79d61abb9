//! The training of a script: the trainer that it starts, with the model, the adapter and the settings that this one is given.

use super::calls::{
    GIVE_ANOTHER, Library, MORE_THAN_TEXT, ModelKind, TrainerRow, UNSLOTH_LOADER, config_kind, is_collator,
    is_of_unsloth, model_kind, trainer_row, why_no_texts,
};
use super::columns::{handles_more_than_text, has_more_than_text};
use super::model::Made;
use super::run::{Bound, Called, Run};
use super::trainer::{argument_of, config_of, refused, trainer_of};
use super::value::{Evaluated, Known};
use crate::import::StackFileError;
use peft_tune_core::recipe::TrainerKind;

/// Methods of transformers' settings that change them, in what a training does.
const SETTERS: &[&str] = &["set_training", "set_optimizer", "set_lr_scheduler", "set_dataloader"];

/// What a script trains, by the calls that say it.
pub(super) struct Training<'r> {
    pub library: Library,
    pub kind: TrainerKind,
    pub trainer: Option<&'r Called>,
    pub config: Option<&'r Called>,
    /// Call that loads the model, where the trainer is not given its name.
    pub model: Option<&'r Called>,
    /// The model's name, which the trainer loads by itself.
    pub model_name: Option<&'r Bound>,
    /// Call that says the adapter.
    pub adapter: Option<&'r Called>,
    pub has_adapter: bool,
    /// Whether questions are masked by unsloth's marks.
    pub is_masked: bool,
    /// Whether the model could not be followed back.
    is_lost: bool,
    pub notes: Vec<String>,
}

impl<'r> Training<'r> {
    /// Finds the training of a script.
    ///
    /// # Errors
    /// A script that trains nothing, or something else than language models by a trainer that is read.
    pub(super) fn of(run: &'r Run<'r>) -> Result<Self, StackFileError> {
        let mut notes = Vec::new();
        let (trainer, is_masked) = trainer_of(run, &mut notes)?;
        let config = config_of(run, trainer, &mut notes);
        notes.extend(setters(run));
        let row = trainer.and_then(trainer_row);
        let kind = row
            .map(|row| row.kind)
            .or(config.and_then(config_kind))
            .unwrap_or_default();
        let mut training = Self {
            library: Library::Trl,
            kind,
            trainer,
            config,
            model: None,
            model_name: None,
            adapter: None,
            has_adapter: false,
            is_masked,
            is_lost: false,
            notes,
        };
        training.find_model(run)?;
        training.check_collator(run)?;
        training.library = library(run, row, training.model);
        training.find_adapter(run)?;
        for bound in ["model", "args", "peft_config"]
            .map(|name| training.argument(name))
            .into_iter()
            .flatten()
        {
            let grounds = bound.value.grounds.iter().map(|ground| ground.to_string());
            training.notes.extend(grounds);
        }
        Ok(training)
    }

    /// An argument of the trainer.
    pub(super) fn argument(&self, name: &str) -> Option<&'r Bound> {
        argument_of(self.trainer?, name)
    }

    /// A named argument of the call that loads the model.
    pub(super) fn model_argument(&self, name: &str) -> Option<&'r Bound> {
        self.model?.argument(name, None)
    }

    /// Refuses rows that are no texts, by what puts them together, and tells of what the script itself has for that.
    fn check_collator(&mut self, run: &'r Run<'r>) -> Result<(), StackFileError> {
        let Some(bound) = self.argument("data_collator") else {
            return Ok(());
        };
        if bound.value.is_nothing() {
            return Ok(());
        }
        let value = without_partial(run, &bound.value);
        let made = run.result(value);
        let own = made.and_then(|call| call.subclass.as_ref());
        let class = own.and_then(|own| run.classes.get(&own.name)).map(|own| &own.class);
        let (name, takes_more) = match (&value.known, made) {
            (_, Some(call)) => (call.short_name(), class.is_some_and(|class| has_more_than_text(class))),
            (Known::Function(function), _) => (function.name.as_str(), handles_more_than_text(function)),
            (Known::Class(class), _) => (class.name.as_str(), has_more_than_text(class)),
            (Known::Name(path), _) => (path.rsplit('.').next().unwrap_or(path), false),
            _ => ("", false),
        };
        let location = run.location(made.map_or(bound.line, |call| call.line));
        let reason = why_no_texts(name).or(takes_more.then_some(MORE_THAN_TEXT));
        if let Some(what) = reason {
            let name = own.map_or(name, |own| own.name.as_str());
            return Err(StackFileError::OtherTask {
                location,
                what: format!("`{name}` {what}"),
                instead: GIVE_ANOTHER,
            });
        }
        let is_of_library = matches!(value.known, Known::Name(_)) || made.is_some();
        if own.is_some() || !is_of_library || !is_collator(name) {
            let text = &bound.text;
            self.notes.push(format!(
                "{location}: how `{text}` puts rows together is code, and is not taken over"
            ));
        }
        Ok(())
    }

    fn find_model(&mut self, run: &'r Run<'r>) -> Result<(), StackFileError> {
        let given = self.argument("model");
        let made = given.map_or_else(Made::default, |bound| Made::of(run, &bound.value));
        self.model_name = given.filter(|_| made.is_text);
        self.is_lost = made.loaded.is_none() && !made.is_text;
        // One that writes texts, where there are others.
        let is_other = |call: &&Called| matches!(model_kind(call), Some(ModelKind::Other(_)));
        let loaded = || run.calls.iter().filter(|call| model_kind(call).is_some());
        let first = || loaded().find(|call| !is_other(call)).or_else(|| loaded().next());
        self.model = match self.is_lost {
            true => first(),
            false => made.loaded,
        };
        if let (true, Some(call), Some(bound)) = (self.is_lost, self.model, given) {
            self.notes.push(format!(
                "{}: which model `{}` is cannot be told: the one that is loaded at {} is taken",
                run.location(bound.line),
                bound.text,
                run.location(call.line)
            ));
        }
        if let Some(call) = self.model
            && let Some(ModelKind::Other(reason)) = model_kind(call)
        {
            return Err(refused(run, call, call.owner(), reason));
        }
        self.adapter = made.adapter;
        self.has_adapter = made.adapter.is_some() || made.has_unknown_adapter || made.started.is_some();
        if let Some(bound) = given.filter(|_| made.has_unknown_adapter) {
            self.notes.push(format!(
                "{}: what is said of the adapter of `{}` cannot be evaluated: the usual settings are taken; write `rank` and \
                 `target_modules` in the study",
                run.location(bound.line),
                bound.text
            ));
        }
        if let Some(call) = made.started {
            self.notes.push(format!(
                "{}: the adapter that is loaded there is left out: trials start from a new one",
                run.location(call.line)
            ));
        }
        Ok(())
    }

    /// The adapter that the trainer is told to add, or that was added to the model.
    fn find_adapter(&mut self, run: &'r Run<'r>) -> Result<(), StackFileError> {
        let given = self.argument("peft_config").filter(|bound| !bound.value.is_nothing());
        let adding = run.calls.iter().find(|call| call.short_name() == "add_adapter");
        let named = adding.and_then(|call| call.argument("adapter_config", Some(0)));
        if let Some(bound) = given.or(named.filter(|_| self.adapter.is_none())) {
            self.has_adapter = true;
            self.adapter = run.result(&bound.value);
            if self.adapter.is_none() {
                self.notes.push(format!(
                    "{}: what `{}` says of the adapter cannot be evaluated: the usual settings are taken",
                    run.location(bound.line),
                    bound.text
                ));
            }
        }
        // A model that cannot be followed back has the one that is made.
        if self.is_lost && !self.has_adapter {
            let made = run.calls.iter().find(|call| is_adapter(call));
            self.adapter = made.or_else(|| added(run));
            self.has_adapter = self.adapter.is_some();
        }
        if self.is_lost
            && !self.has_adapter
            && self.library != Library::Unsloth
            && let Some(bound) = self.argument("model")
        {
            self.notes.push(format!(
                "{}: whether `{}` has an adapter cannot be told: all parameters are trained here; write `method` and `rank` in the study",
                run.location(bound.line),
                bound.text
            ));
        }
        if let Some(call) = self.adapter
            && call.short_name() != "get_peft_model"
            && call.short_name() != "LoraConfig"
        {
            let reason = match call.short_name() {
                "get_peft_config" => "takes the adapter from the script's options: give its command, or its YAML",
                _ => "makes an adapter that is no LoRA",
            };
            return Err(refused(run, call, call.short_name(), reason));
        }
        if self.library == Library::Unsloth && !self.has_adapter && !self.trains_all() {
            self.has_adapter = true;
            let location = self
                .model
                .map_or_else(String::new, |call| format!("{}: ", run.location(call.line)));
            self.notes.push(format!(
                "{location}no call of `get_peft_model` adds an adapter: one with unsloth's usual settings is taken"
            ));
        }
        Ok(())
    }

    /// Whether unsloth is told to train all parameters.
    fn trains_all(&self) -> bool {
        let said = self
            .model
            .and_then(|call| call.argument_in("full_finetuning", UNSLOTH_LOADER));
        said.is_some_and(|bound| bound.value.truth() == Some(true))
    }
}

/// A value, or the function that `partial` gives some of its arguments beforehand.
fn without_partial<'r>(run: &'r Run<'r>, value: &'r Evaluated) -> &'r Evaluated {
    let partial = run.result(value).filter(|call| call.short_name() == "partial");
    let function = partial.and_then(|call| call.argument("func", Some(0)));
    function.map_or(value, |function| &function.value)
}

fn library(run: &Run<'_>, row: Option<&TrainerRow>, model: Option<&Called>) -> Library {
    let is_of_unsloth = model.is_some_and(|call| model_kind(call) == Some(ModelKind::Unsloth));
    match row {
        _ if is_of_unsloth || run.packages.contains("unsloth") => Library::Unsloth,
        Some(row) if row.name == "Trainer" => Library::Transformers,
        _ => Library::Trl,
    }
}

/// Lines on methods of settings that change them.
fn setters<'r>(run: &'r Run<'r>) -> impl Iterator<Item = String> + 'r {
    let is_one = move |call: &&Called| {
        let changed = call.receiver.as_ref().and_then(|receiver| run.result(receiver));
        SETTERS.contains(&call.short_name()) && changed.and_then(config_kind).is_some()
    };
    run.calls.iter().filter(is_one).map(move |call| {
        format!(
            "{}: what `{}` changes of the settings is not taken over: write it as arguments of theirs",
            run.location(call.line),
            call.short_name()
        )
    })
}

/// The settings by which PEFT's function adds an adapter to some model.
fn added<'r>(run: &'r Run<'r>) -> Option<&'r Called> {
    let adding = run.calls.iter().filter(|call| call.short_name() == "get_peft_model");
    let mut settings = adding.filter_map(|call| call.argument("peft_config", Some(1)));
    settings.find_map(|bound| run.result(&bound.value))
}

fn is_adapter(call: &Called) -> bool {
    call.short_name() == "LoraConfig" || call.short_name() == "get_peft_model" && is_of_unsloth(call.owner())
}
