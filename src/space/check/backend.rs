//! What runs a study's trials, and what that makes of the rest of the file: a command reads no keys about models and
//! data, and trials in TRL or unsloth have no part of what the native engine alone measures or starts.

use std::path::Path;

use super::Context;
use super::objective::RECIPE_METRICS;
use super::parameter::Parameters;
use crate::space::file::{BackendEntry, BackendKeys, StudyFile};
use crate::space::study::{Backend, CommandBackend, TrlBackend};
use crate::space::yaml::Span;
use crate::space::{Loader, SpaceError};
use peft_tune_core::objective::{
    EXACT_MATCH, LOSS, PEAK_MEMORY, REWARD_ACCURACY, REWARD_MARGIN, THROUGHPUT, TOKEN_ACCURACY,
};
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::space::Distribution;
use peft_tune_core::study::{ParamValue, Params};

/// Keys that mean nothing to a command backend.
const NATIVE_KEYS: &[&[&str]] = &[
    &["target_stack"],
    &["model"],
    &["data"],
    &["training"],
    &["score"],
    &["serve"],
    &["trial", "sequence_length"],
    &["trial", "profile_steps"],
    &["trial", "profile_warmup"],
    &["trial", "training_steps"],
    &["trial", "training_tokens"],
    &["trial", "training_epochs"],
    &["trial", "evaluation"],
    &["trial", "memory_limit"],
];

/// Metrics of trained recipes that trials in TRL have.
const TRL_METRICS: [&str; 6] = [
    THROUGHPUT,
    PEAK_MEMORY,
    LOSS,
    TOKEN_ACCURACY,
    REWARD_ACCURACY,
    REWARD_MARGIN,
];

impl Context<'_> {
    /// What runs the trials: what is `asked` for, else what the file names.
    pub(super) fn backend(&self, file: &StudyFile, asked: Option<Backend>) -> Result<Backend, SpaceError> {
        let command = self.command_of(&file.backend)?;
        let backend = match (asked, command) {
            (Some(_), Some(_)) => {
                return Err(SpaceError::Rejected {
                    at: self.document.key(&["backend", "command"]),
                    message: "the parameters of a command are known to it alone; leave `--backend` out".into(),
                });
            }
            (None, Some((keys, command))) => Backend::Command(self.command(file, keys, command)?),
            (None, None) => {
                let loader = file.backend.loader();
                let trl = loader.map(|loader| self.trl(loader, &file.backend)).transpose()?;
                // A file that leaves the engine open is read as the built-in one reads it, until a search has chosen.
                let trl = trl.filter(|_| !file.backend.is_open());
                trl.map_or(Backend::Native, Backend::Trl)
            }
            (Some(Backend::Trl(TrlBackend { loader, python: None })), None) => {
                Backend::Trl(self.trl(loader, &file.backend)?)
            }
            (Some(asked), None) => asked,
        };
        if backend.trains_recipes() && file.trial.steps.is_some() {
            return Err(SpaceError::Rejected {
                at: self.document.key(&["trial", "steps"]),
                message: "this is the length of a command's trial; write `training_steps`".into(),
            });
        }
        if let Backend::Trl(TrlBackend { loader, .. }) = backend {
            self.refuse_for_trl(file, loader.title())?;
        }
        Ok(backend)
    }

    /// The words of the command that a file names, with the keys beside it.
    ///
    /// # Errors
    /// Keys that name no backend, or two, or that are about another one.
    fn command_of<'f>(&self, entry: &'f BackendEntry) -> Result<Option<(&'f BackendKeys, &'f [String])>, SpaceError> {
        let BackendEntry::Keys(keys) = entry else {
            return Ok(None);
        };
        let of_command = ["folder", "env"];
        let runners = [
            ("command", keys.command.is_some()),
            ("trl", keys.trl.is_some()),
            ("unsloth", keys.unsloth.is_some()),
            ("auto", keys.auto.is_some()),
        ];
        let mut named = runners.iter().filter(|(_, is_named)| *is_named).map(|(name, _)| *name);
        match (named.next(), named.next()) {
            (Some(first), Some(second)) => Err(SpaceError::Conflict {
                at: self.document.key(&["backend", second]),
                other: format!("backend.{first}"),
                reason: "one of them runs the trials",
            }),
            (Some("command"), None) => Ok(keys.command.as_deref().map(|command| (keys, command))),
            (Some(_), None) => match of_command.iter().find(|key| self.document.has(&["backend", key])) {
                Some(key) => Err(SpaceError::Rejected {
                    at: self.document.key(&["backend", key]),
                    message: "this is about the program of `backend.command`, and there is none; remove it".into(),
                }),
                None => Ok(None),
            },
            (None, _) => Err(SpaceError::Rejected {
                at: self.document.key(&["backend"]),
                message: "these keys name nothing that runs the trials; write `native`, `trl`, `unsloth`, `auto`, {trl: {python: ..}}, \
                          {unsloth: {python: ..}}, {auto: {python: ..}} or {command: [program, argument, ..]}"
                    .into(),
            }),
        }
    }

    fn command(&self, file: &StudyFile, keys: &BackendKeys, command: &[String]) -> Result<CommandBackend, SpaceError> {
        if command.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["backend", "command"]),
                message: "there is no program; write [program, argument, ..]".into(),
            });
        }
        if let Some(keys) = NATIVE_KEYS.iter().find(|keys| self.document.has(keys)) {
            return Err(SpaceError::Conflict {
                at: self.document.key(keys),
                other: "backend.command".into(),
                reason: "a command takes its settings from its own arguments and from `space`",
            });
        }
        let folder = match &keys.folder {
            Some(folder) => self.folder(&["backend", "folder"], folder)?,
            None => self.absolute(Path::new(".")),
        };
        Ok(CommandBackend {
            command: command.to_vec(),
            folder,
            env: keys.env.clone(),
            steps: file.trial.steps.map(u64::from),
        })
    }

    /// Trials on models of this loader, in the interpreter that a file names for them, or for the choice of the engine.
    fn trl(&self, loader: Loader, entry: &BackendEntry) -> Result<TrlBackend, SpaceError> {
        let BackendEntry::Keys(keys) = entry else {
            return Ok(TrlBackend::by(loader));
        };
        let (name, keys) = match loader {
            Loader::Transformers if keys.trl.is_none() => ("auto", &keys.auto),
            Loader::Transformers => ("trl", &keys.trl),
            Loader::Unsloth => ("unsloth", &keys.unsloth),
        };
        let python = keys.as_ref().and_then(|keys| keys.python.as_deref());
        let found = python.map(|python| self.interpreter(&["backend", name, "python"], python));
        Ok(TrlBackend {
            loader,
            python: found.transpose()?,
        })
    }

    /// Refuses keys that ask for what the native engine alone measures or starts, and metrics of it.
    fn refuse_for_trl(&self, file: &StudyFile, title: &str) -> Result<(), SpaceError> {
        let evaluation = &file.trial.evaluation;
        let is_mixed = file.data.as_ref().is_some_and(|data| !data.train.sets().is_empty());
        let retains = file.data.as_ref().is_some_and(|data| !data.retain.is_empty());
        let keys: [(bool, &[&str], &str); 10] = [
            (
                file.target_stack.is_some(),
                &["target_stack"],
                "are measured there, and nothing is predicted of another stack; remove it",
            ),
            (
                file.target_device.is_some(),
                &["target_device"],
                "are measured on this machine, and nothing is predicted of another device; remove it",
            ),
            (file.score.is_some(), &["score"], "answer no prompts so far; remove it"),
            (
                file.serve.is_some(),
                &["serve"],
                "measure no serving so far (`infer-bench --url` measures a server); remove it",
            ),
            (
                evaluation.accuracy_check,
                &["trial", "evaluation", "accuracy_check"],
                "are not compared with fp32 base weights so far; remove it",
            ),
            (
                evaluation.fp32_training,
                &["trial", "evaluation", "fp32_training"],
                "are not compared with trainings in fp32 so far; remove it",
            ),
            (
                evaluation.base_kl,
                &["trial", "evaluation", "base_kl"],
                "are not compared with the model before the training so far; remove it",
            ),
            (
                retains,
                &["data", "retain"],
                "are evaluated on held-out rows alone so far; remove it",
            ),
            (
                is_mixed,
                &["data", "train"],
                "mix no sets by weights so far; name files alone",
            ),
            (
                file.launcher.is_elsewhere(),
                &["launcher"],
                "run on this machine so far; remove it",
            ),
        ];
        if let Some((_, keys, message)) = keys.iter().find(|(is_asked, ..)| *is_asked) {
            return Err(SpaceError::Rejected {
                at: self.document.key(keys),
                message: format!("trials in {title} {message}, or search with the native backend"),
            });
        }
        for (index, objective) in file.objectives.iter().enumerate() {
            refuse_metric_for_trl(title, &objective.0.metric, || self.objective_place(index, "metric"))?;
        }
        for metric in file.constraints.names() {
            refuse_metric_for_trl(title, metric, || self.document.key(&["constraints", metric]))?;
        }
        Ok(())
    }

    /// Refuses values of settings that choose among what PyTorch's stack has.
    pub(super) fn refuse_values_of_torch(&self, parameters: &Parameters, baseline: &Params) -> Result<(), SpaceError> {
        for row in settings().filter(|row| row.is_of_torch()) {
            let Some(off) = row.legal.off() else { continue };
            if let Some(keys) = other_than(&off, row.name, parameters, baseline) {
                return Err(SpaceError::Rejected {
                    at: self.document.value(&keys),
                    message: format!(
                        "the built-in engine has no `{}`, which chooses among kernels and loaders of PyTorch; remove it, or search with \
                         `backend: trl`",
                        row.name
                    ),
                });
            }
        }
        Ok(())
    }
}

/// Place in the file where a setting may have another value than this one.
fn other_than<'n>(
    only: &ParamValue,
    name: &'n str,
    parameters: &Parameters,
    baseline: &Params,
) -> Option<[&'n str; 2]> {
    if may_be_other_than(only, name, parameters) {
        return Some(["space", name]);
    }
    let is_other = baseline.get(name).is_some_and(|value| value != only);
    is_other.then_some(["baseline", name])
}

/// Refuses a metric that the native engine alone measures.
fn refuse_metric_for_trl(title: &str, metric: &str, at: impl FnOnce() -> Box<Span>) -> Result<(), SpaceError> {
    let is_of_engine = metric == EXACT_MATCH || RECIPE_METRICS.contains(&metric);
    if !is_of_engine || TRL_METRICS.contains(&metric) {
        return Ok(());
    }
    Err(SpaceError::Rejected {
        at: at(),
        message: format!(
            "trials in {title} do not measure `{metric}` so far; write one of {}, or search with the native backend",
            TRL_METRICS.join(", ")
        ),
    })
}

/// Whether trials may have another value of a setting than this one.
fn may_be_other_than(only: &ParamValue, name: &str, parameters: &Parameters) -> bool {
    if let Some(fixed) = parameters.fixed.get(name) {
        return fixed != only;
    }
    let mut sampled = parameters.space.parameters.iter();
    match sampled.find(|one| one.name == name).map(|one| &one.distribution) {
        Some(Distribution::Categorical { choices }) => choices.iter().any(|value| value != only),
        // A range has two values at least.
        Some(Distribution::Int { .. } | Distribution::Float { .. }) => true,
        None => false,
    }
}
