//! The trainer that a script starts, and the settings that this one is given.

use std::collections::BTreeMap;

use super::calls::{GIVE_ANOTHER, config_kind, is_of_another_trainer, trainer_row, why_not};
use super::run::{Bound, Called, Run};
use super::value::{Evaluated, Known};
use crate::import::StackFileError;

/// Steps back that are taken at the most.
const MOST_STEPS: usize = 40;

/// Modules that have a trainer of their own, which is called as that of transformers is.
pub(super) const OTHER_MODULES: &[&str] = &["pl", "L", "lightning", "pytorch_lightning", "swift"];

/// Arguments of a trainer that are code.
const CODE: &[&str] = &["optimizers", "compute_loss_func", "model_init", "ref_model"];

/// Trainers that a script makes, by their numbers among its calls.
#[derive(Default)]
struct Trainers {
    /// Trainers in the order in which they are started, each once.
    started: Vec<usize>,
    /// Trainers whose questions are masked by unsloth's marks.
    masked: Vec<usize>,
    /// What was assumed for the first one.
    grounds: Vec<String>,
    /// Number of the call that starts the first one.
    first_start: Option<usize>,
}

impl Trainers {
    fn of(run: &Run<'_>) -> Self {
        let mut all = Self::default();
        for (number, call) in run.calls.iter().enumerate() {
            let given = call.argument("trainer", Some(0)).map(|bound| &bound.value);
            let behind = |trainer: Option<&Evaluated>| trainer.and_then(|trainer| trainer_behind(run, trainer));
            let trainer = match call.short_name() {
                "train" => call.receiver.as_ref(),
                "unsloth_train" => given,
                "train_on_responses_only" => {
                    all.masked.extend(behind(given));
                    None
                }
                _ => None,
            };
            let Some(id) = behind(trainer).filter(|id| !all.started.contains(id)) else {
                continue;
            };
            if all.started.is_empty() {
                let grounds = trainer.into_iter().flat_map(|trainer| &trainer.grounds);
                all.grounds.extend(grounds.map(|ground| ground.to_string()));
                all.first_start = Some(number);
            }
            all.started.push(id);
        }
        all
    }
}

/// Variables of the environment with the texts that they have when a script starts to train, or at its end.
pub(super) fn environment(run: &Run<'_>) -> BTreeMap<String, String> {
    let start = Trainers::of(run).first_start.unwrap_or(run.calls.len());
    let mut all = BTreeMap::new();
    for variable in run.variables_before(start) {
        // One that cannot be evaluated is not what it was before.
        all.remove(&variable.name);
        all.extend(
            variable
                .value
                .text()
                .map(|text| (variable.name.clone(), text.to_owned())),
        );
    }
    all
}

/// The trainer that is started, and whether its questions are masked; no trainer where a script makes settings of one alone.
///
/// # Errors
/// A trainer that is not read; a script without one, and without settings of one.
pub(super) fn trainer_of<'r>(
    run: &'r Run<'r>,
    notes: &mut Vec<String>,
) -> Result<(Option<&'r Called>, bool), StackFileError> {
    let trainers = Trainers::of(run);
    let made = || run.calls.iter().rposition(Called::makes_trainer);
    let id = trainers.started.first().copied().or_else(made);
    let Some((id, trainer)) = id.and_then(|id| Some((id, run.calls.get(id)?))) else {
        return settings_alone(run, notes).map(|()| (None, false));
    };
    let name = trainer.short_name();
    let package = trainer.function.split('.').next().unwrap_or_default();
    let is_of_other = [trainer.owner(), package]
        .iter()
        .any(|name| OTHER_MODULES.contains(name));
    if trainer_row(trainer).is_none() || is_of_other {
        return Err(refused(run, trainer, &trainer.function, why_not(name)));
    }
    notes.extend(trainers.grounds);
    tell(run, trainer, trainers.started.is_empty(), notes);
    let others = trainers.started.iter().skip(1).filter_map(|id| run.calls.get(*id));
    notes.extend(others.map(|other| {
        if other.line == trainer.line {
            let location = run.location(other.line);
            return format!("{location}: what makes this trainer is called several times: its first call is read");
        }
        format!(
            "{}: `{}` trains too: only the training of {} is read; give a script for each",
            run.location(other.line),
            other.short_name(),
            run.location(trainer.line)
        )
    }));
    Ok((Some(trainer), trainers.masked.contains(&id)))
}

/// Tells what is taken for granted of a trainer.
fn tell(run: &Run<'_>, trainer: &Called, is_not_started: bool, notes: &mut Vec<String>) {
    let (location, name) = (run.location(trainer.line), trainer.short_name());
    if let Some(subclass) = trainer.subclass.as_ref().map(|class| &class.name) {
        notes.push(format!(
            "{location}: what `{subclass}` does otherwise than `{name}` is code, and is not taken over"
        ));
    }
    if is_not_started {
        notes.push(format!(
            "{location}: no call of `train()` is found: the settings of this `{name}` are read"
        ));
    }
    for argument in CODE {
        let bound = trainer
            .argument(argument, None)
            .filter(|bound| !bound.value.is_nothing());
        if let Some(bound) = bound {
            notes.push(format!(
                "{}: `{argument}={}` is code, and is not taken over",
                run.location(bound.line),
                bound.text
            ));
        }
    }
}

/// Looks whether a script without a trainer has the settings of one.
fn settings_alone(run: &Run<'_>, notes: &mut Vec<String>) -> Result<(), StackFileError> {
    if let Some(other) = run.calls.iter().find(|call| is_of_another_trainer(call)) {
        return Err(refused(run, other, other.short_name(), why_not(other.short_name())));
    }
    match run.calls.iter().find(|call| config_kind(call).is_some()) {
        Some(config) => {
            notes.push(format!(
                "{}: no trainer is made in the script: the settings of this `{}` are read",
                run.location(config.line),
                config.short_name()
            ));
            Ok(())
        }
        None => Err(StackFileError::NoTraining {
            file: run.source.file().to_owned(),
            instead: GIVE_ANOTHER,
        }),
    }
}

/// The settings of a trainer.
pub(super) fn config_of<'r>(
    run: &'r Run<'r>,
    trainer: Option<&'r Called>,
    notes: &mut Vec<String>,
) -> Option<&'r Called> {
    let first = || run.calls.iter().find(|call| config_kind(call).is_some());
    let Some(trainer) = trainer else {
        return first();
    };
    let bound = argument_of(trainer, "args").filter(|bound| !bound.value.is_nothing())?;
    let config = run.result(&bound.value).filter(|call| config_kind(call).is_some());
    if config.is_some() {
        return config;
    }
    let (location, text) = (run.location(bound.line), &bound.text);
    notes.push(match first() {
        Some(call) => format!(
            "{location}: which settings `args={text}` are cannot be told: those of {} are taken",
            run.location(call.line)
        ),
        None => format!("{location}: `args={text}` cannot be evaluated: the trainer's usual settings are taken"),
    });
    first()
}

/// An argument of a trainer, by its name or its position.
pub(super) fn argument_of<'r>(trainer: &'r Called, name: &str) -> Option<&'r Bound> {
    let positions = trainer_row(trainer).map_or(&[][..], |row| row.positions);
    trainer.argument_in(name, positions)
}

/// The trainer that a value is, also behind functions that change one.
fn trainer_behind(run: &Run<'_>, value: &Evaluated) -> Option<usize> {
    let mut known = &value.known;
    for _ in 0..MOST_STEPS {
        match known {
            Known::Part(whole, _) => known = &**whole,
            Known::Result(id) => {
                let call = run.calls.get(*id)?;
                if call.makes_trainer() {
                    return Some(*id);
                }
                known = &call.argument("trainer", Some(0))?.value.known;
            }
            _ => return None,
        }
    }
    None
}

/// An error about a call that trains something else.
pub(super) fn refused(run: &Run<'_>, call: &Called, name: &str, reason: &'static str) -> StackFileError {
    StackFileError::OtherTask {
        location: run.location(call.line),
        what: format!("`{name}` {reason}"),
        instead: GIVE_ANOTHER,
    }
}
