//! Reads a study file.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::objective::follow_loss;
use super::parameter::Parameters;
use super::score::score_metrics;
use super::serve::limit_serving;
use super::{Context, ReadOptions};
use crate::space::SpaceError;
use crate::space::file::{BudgetEntry, SamplerEntry, StudyFile};
use crate::space::recipe_for::apply;
use crate::space::study::{Backend, Budget, Source, Study};
use crate::space::yaml::Document;
use peft_tune_core::hexadecimal;
use peft_tune_core::predict::DevicePrice;
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::recipe::{DataSettings, Recipe, TrainerKind};
use peft_tune_core::space::Distribution;
use peft_tune_core::study::{LauncherSettings, ParamValue};
use peft_tune_search::SamplerChoice;

/// Trials of a study that gives neither a number nor a time.
const DEFAULT_TRIALS: u64 = 40;
/// Source of a price that the file gives, in words.
const PRICE_SOURCE: &str = "the study file";

impl StudyFile {
    /// Reads a study file and checks it.
    ///
    /// # Errors
    /// At the first mistake; the error names file, line, column and key, and what to do.
    pub fn read(path: &Path) -> Result<Study, SpaceError> {
        Self::read_with(path, ReadOptions::default())
    }

    /// Reads a study like [`StudyFile::read`], as strictly as `options` say.
    pub fn read_with(path: &Path, options: ReadOptions) -> Result<Study, SpaceError> {
        study_of(Document::read(path)?, options, None)
    }

    /// Reads a study like [`StudyFile::read`]; its trials are run by what is `asked` for, where something is, and not by what the file
    /// names. The file's interpreter stays where TRL is asked for without one.
    ///
    /// # Errors
    /// Errors of [`StudyFile::read`]; where something is asked for and the file is a command's.
    pub fn read_for(path: &Path, asked: Option<Backend>) -> Result<Study, SpaceError> {
        Self::read_for_with(path, asked, ReadOptions::default())
    }

    /// Reads a study like [`StudyFile::read_for`], as strictly as `options` say.
    pub fn read_for_with(path: &Path, asked: Option<Backend>, options: ReadOptions) -> Result<Study, SpaceError> {
        study_of(Document::read(path)?, options, asked)
    }

    /// Checks text as if it stood in the file `path`: a study kept in the database, say.
    pub fn parse(path: &Path, text: &str, options: ReadOptions) -> Result<Study, SpaceError> {
        Self::parse_for(path, text, None, options)
    }

    /// Checks text like [`StudyFile::parse`], for what is `asked` for, as [`StudyFile::read_for`] takes it.
    pub fn parse_for(
        path: &Path,
        text: &str,
        asked: Option<Backend>,
        options: ReadOptions,
    ) -> Result<Study, SpaceError> {
        study_of(Document::parse(path, text)?, options, asked)
    }
}

fn study_of(document: Document, options: ReadOptions, asked: Option<Backend>) -> Result<Study, SpaceError> {
    let file: StudyFile = document.decode()?;
    let context = Context {
        document: &document,
        options,
    };
    let engine_is_open = asked.is_none() && file.backend.is_open();
    let backend = context.backend(&file, asked)?;
    let trains = backend.trains_recipes();
    let target = context.target(&file)?;
    let mut parameters = context.parameters(&file.space, trains)?;
    let baseline = context.baseline(&file.baseline, &parameters, trains)?;
    // An engine that is chosen later is read again for it.
    if matches!(backend, Backend::Native) && !engine_is_open {
        context.refuse_values_of_torch(&parameters, &baseline)?;
    }
    let trainer = match trains {
        true => context.trainer(&parameters, &baseline)?,
        false => TrainerKind::default(),
    };
    let score = context.score(&file)?;
    let scored = score_metrics(score.as_ref());
    let metrics = trains.then_some(scored.as_slice());
    let entries = context.objectives_of(&file, trainer, &parameters);
    if trains {
        context.check_metrics_of(trainer, &parameters, &entries, &file)?;
    }
    let mut objectives = context.objectives(&entries, metrics)?;
    let mut constraints = context.constraints(&file.constraints, metrics)?;
    let mut plan = context.plan(&file, score, &objectives, &constraints, trains)?;
    if trains {
        follow_loss(&objectives, &constraints, &mut parameters.space);
        limit_serving(&objectives, &constraints, &plan, &mut parameters.space);
    }
    if let Some(target) = &target {
        target.take_over(&mut objectives, &mut constraints, &mut parameters.space);
    }
    let pruner = context.pruner(&file, &mut plan)?;
    let stop = context.stop_rule(&file.stop)?;
    let confirm = context.confirm(file.confirm.as_ref(), &objectives, &constraints, trains)?;
    let finds_length = context.finds_length(&file, &objectives, &constraints, confirm.as_ref())?;
    let mut base = trains.then(|| context.base(&file, &parameters)).transpose()?;
    if let (Some(base), Some(target)) = (&mut base, target)
        && !document.has(&["data", "template_targets"])
    {
        target.learn_as_there(&mut base.data);
    }
    if let Some(base) = &base {
        context.check_schedules(&parameters, base, &plan)?;
        context.check_shardings(&parameters, base, &plan)?;
        context.check_offloads(&parameters, base)?;
    }
    let (memory_limit_bytes, trial_timeout_s) = context.limits(&file.trial)?;
    Ok(Study {
        name: context.name(file.study.as_deref())?,
        base,
        finds_length,
        fixed: parameters.fixed,
        space: parameters.space,
        baseline,
        objectives,
        constraints,
        plan,
        budget: context.budget(&file.budget)?,
        price: file.price.map(|price| DevicePrice::given(price, PRICE_SOURCE)),
        pruner,
        stop,
        confirm,
        warm_start: file.warm_start.0,
        memory_limit_bytes,
        trial_timeout_s,
        seed: file.seed,
        sampler: context.sampler(&file.sampler)?,
        backend,
        engine_is_open,
        launcher: context.launcher(&file.launcher)?,
        target,
        track: context.track(&file.track)?,
        source: Source {
            sha256: hexadecimal(&Sha256::digest(document.text())),
            document,
        },
    })
}

impl Context<'_> {
    fn name(&self, given: Option<&str>) -> Result<String, SpaceError> {
        let name = match given {
            Some(name) => name.trim().to_owned(),
            None => self
                .document
                .path()
                .file_stem()
                .map_or_else(|| "study".into(), |stem| stem.to_string_lossy().into_owned()),
        };
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["study"]),
                message: "a study needs a name; write one on one line".into(),
            });
        }
        Ok(name)
    }

    /// Refuses a value that the table of settings does not allow, where it stands in `trial`.
    fn check_setting(&self, name: &str, recipe: &Recipe) -> Result<(), SpaceError> {
        match settings().find(|row| row.name == name) {
            Some(row) => self.check_row(row, recipe, &["trial", name]),
            None => Ok(()),
        }
    }

    fn launcher(&self, launcher: &LauncherSettings) -> Result<LauncherSettings, SpaceError> {
        let empty = |words: &[String]| words.iter().any(|word| word.trim().is_empty()) || words.is_empty();
        let (name, key, message) = match launcher {
            LauncherSettings::Command(words) if empty(words) => (
                "command",
                None,
                "there is no program; write [program, argument, ..], or `launcher: local`",
            ),
            LauncherSettings::Ssh(ssh) if empty(&ssh.hosts) => {
                ("ssh", Some("hosts"), "there is no machine; write [host, user@host, ..]")
            }
            LauncherSettings::Ssh(ssh) if ssh.hosts.iter().any(|host| !is_host(host)) => (
                "ssh",
                Some("hosts"),
                "a machine's name does not begin with `-`, which ssh takes for an option, and has no blanks; write [host, user@host, ..]",
            ),
            LauncherSettings::Kubernetes(kubernetes) if kubernetes.image.trim().is_empty() => (
                "kubernetes",
                Some("image"),
                "there is no image; write one that holds peft-tune",
            ),
            sound => return Ok(sound.clone()),
        };
        let keys: Vec<&str> = ["launcher", name].into_iter().chain(key).collect();
        Err(SpaceError::Rejected {
            at: self.document.value(&keys),
            message: message.into(),
        })
    }

    /// The recipe that sampled values complete.
    fn base(&self, file: &StudyFile, parameters: &Parameters) -> Result<Recipe, SpaceError> {
        let missing = |key: &str| SpaceError::MissingKey {
            at: self.document.key(&[]),
            key: key.to_owned(),
        };
        let model = file.model.as_deref().ok_or_else(|| missing("model"))?;
        let mut data: DataSettings = file.data.clone().ok_or_else(|| missing("data"))?;
        self.resolve_data(&mut data)?;
        let mut recipe = Recipe::new(self.resolve_model(model)?, data);
        if let Some(training) = &file.training {
            let training = training.of_recipe();
            self.check_training(&training)?;
            recipe.training = training;
        }
        if !self.document.has(&["training", "seed"]) {
            recipe.training.seed = file.seed;
        }
        if let Some(length) = file.trial.sequence_length {
            if self.document.has(&["space", "sequence_length"]) {
                return Err(SpaceError::Conflict {
                    at: self.document.key(&["trial", "sequence_length"]),
                    other: "space.sequence_length".into(),
                    reason: "both set the length of a row",
                });
            }
            recipe.batch.sequence_length = length.get();
            self.check_setting("sequence_length", &recipe)?;
        }
        // In their own order: some read what others have set, as `global_batch` does `micro_batch`.
        for row in settings() {
            let name = row.name;
            let Some(value) = parameters.fixed.get(name) else {
                continue;
            };
            let source_is_searched = row
                .derived_from
                .is_some_and(|source| parameters.space.parameters.iter().any(|other| other.name == source));
            if !source_is_searched {
                apply(row, value, &mut recipe).map_err(|error| SpaceError::Rejected {
                    at: self.document.value(&["space", name]),
                    message: error.to_string(),
                })?;
            }
        }
        self.settle_rows(&mut recipe)?;
        if recipe.data.held_out_length.is_none() {
            recipe.data.held_out_length = longest_sequence(&recipe, parameters);
        }
        Ok(recipe)
    }

    fn budget(&self, entry: &BudgetEntry) -> Result<Budget, SpaceError> {
        let zero = |keys: &[&str]| SpaceError::ZeroBudget {
            at: self.document.value(keys),
        };
        if entry.trials == Some(0) {
            return Err(zero(&["budget", "trials"]));
        }
        if entry.time.is_some_and(|time| time.0 == 0.0) {
            return Err(zero(&["budget", "time"]));
        }
        let default = entry.time.is_none().then_some(DEFAULT_TRIALS);
        Ok(Budget {
            trials: entry.trials.or(default),
            time_s: entry.time.map(|time| time.0),
        })
    }

    fn sampler(&self, entry: &SamplerEntry) -> Result<SamplerChoice, SpaceError> {
        let options = entry.0.options.iter().map(|(name, value)| {
            let value = value.to_param().ok_or_else(|| SpaceError::WrongValue {
                at: self.document.value(&["sampler", "options", name]),
                found: "a list".into(),
                expected: "one value, or a list of names".into(),
            })?;
            Ok((name.clone(), value))
        });
        Ok(SamplerChoice {
            kind: entry.0.kind,
            options: options.collect::<Result<_, SpaceError>>()?,
        })
    }
}

/// The longest sequence of a space that has several, so that all of its trials are scored on the same tokens. `None`
/// where all have one length: a recipe then says nothing.
fn longest_sequence(base: &Recipe, parameters: &Parameters) -> Option<usize> {
    let mut all = parameters.space.parameters.iter();
    let searched = all.find(|parameter| parameter.name == "sequence_length")?;
    let choices = match &searched.distribution {
        Distribution::Categorical { choices } => choices.clone(),
        range => vec![range.value_at(1.0)],
    };
    let lengths = choices
        .iter()
        .filter_map(ParamValue::as_f64)
        .map(|length| length as usize);
    // Where the parameter has a condition, other trials have the base's length.
    let of_others = searched.condition.is_some().then_some(base.batch.sequence_length);
    lengths.chain(of_others).max()
}

/// Whether ssh takes a word for a machine, and for one only.
fn is_host(host: &str) -> bool {
    !host.starts_with('-') && !host.chars().any(|c| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_in_hexadecimal() {
        assert!(hexadecimal(&Sha256::digest("")).starts_with("e3b0c44298fc1c14"));
    }
}
