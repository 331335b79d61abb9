//! `backend: auto`: the engine of a search that leaves it open.
//!
//! The built-in engine is taken where it has the model's family and trials run on the CPU, or on a GPU on which it passed its
//! checks. TRL is taken where the engine cannot train the study, or may not on that GPU, and a Python with TRL is there. A study
//! that was begun keeps its engine.

use std::path::PathBuf;

use super::args::Args;
use super::engine_ground::Ground;
use super::trl;
use crate::cli::CliError;
use crate::cli::data::known_offline::model_folder;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::machine::engine_check::{Asking, Beside, Standing};
use crate::cli::options::backend::BackendName;
use crate::cli::processes::interpreter::Stack;
use crate::cli::terminal::output::tell;
use crate::report::printable;
use crate::space::{Backend, BackendKind, Study};
use peft_tune_engine::hub::ModelFiles;

/// Why TRL is no candidate where the answer does not depend on it.
const NOT_ASKED: &str = "no Python was asked";
/// Why unsloth is no candidate.
const NOT_UNSLOTH: &str = "`backend: auto` does not take unsloth by itself";

/// An engine that can train the study.
struct Candidate {
    study: Study,
    /// What makes it one, in few words.
    because: String,
}

/// The two engines, each with the reason where it cannot train the study.
struct Candidates {
    native: Result<Candidate, String>,
    trl: Result<(Candidate, Stack), String>,
    /// What is known of the built-in engine where its trials would run.
    standing: Standing,
    /// The engine that the study began in, where it did.
    began: Option<BackendName>,
}

/// Chooses the engine of a search, says which one it is and why, and returns the study with it.
///
/// # Errors
/// A mistake in the file; bad input that says of both engines why they cannot train the study.
pub(super) fn chosen(args: &mut Args) -> Result<Study, CliError> {
    let found = candidates(args)?;
    let preferred = preferred(found.native.as_ref().err(), found.trl.as_ref().err(), &found.standing);
    let (engine, line) = match (found.began, preferred) {
        (None, Err(message)) => return Err(CliError::bad(message)),
        (None, Ok(engine)) => (engine, format!("auto takes {}: {}", engine.text(), found.why(engine))),
        (Some(began), Ok(engine)) if began != engine => {
            let (text, other) = (began.text(), engine.text());
            let line = format!(
                "the study goes on in {text}, as it began; auto would take {other} now: {}",
                found.why(engine)
            );
            (began, line)
        }
        (Some(began), _) => (began, format!("the study goes on in {}, as it began", began.text())),
    };
    let study = found.taken(engine, args)?;
    if !args.json {
        tell(printable(&line));
    }
    Ok(study)
}

/// The engine to take, from the reasons why each cannot be, and from the built-in one's standing.
fn preferred(native: Option<&String>, trl: Option<&String>, standing: &Standing) -> Result<BackendName, String> {
    match (native, trl) {
        (Some(native), Some(trl)) => Err(format!(
            "`backend: auto`: no engine can train this study: not the built-in one ({native}), and not TRL ({trl})"
        )),
        (Some(_), None) => Ok(BackendName::Trl),
        (None, Some(_)) => Ok(BackendName::Native),
        (None, None) => Ok(standing.preferred()),
    }
}

/// Looks at both engines. No Python is started where the answer does not depend on one.
fn candidates(args: &mut Args) -> Result<Candidates, CliError> {
    let native = args.study_in(Some(BackendName::Native));
    let trl = args.study_in(Some(BackendName::Trl));
    let (native, trl) = match (native, trl) {
        // A mistake in the file, whoever reads it.
        (Err(mistake), Err(_)) => return Err(mistake.into()),
        (native, trl) => (
            native.map_err(|error| error.to_string()),
            trl.map_err(|error| error.to_string()),
        ),
    };
    let study = native.as_ref().or(trl.as_ref());
    let name = study.ok().map(|study| study.name.as_str());
    let began = began_in(args, name)?;
    let native = match native {
        Ok(study) => by_own_engine(study, args)?,
        Err(reason) => Err(reason),
    };
    let study = native.as_ref().ok().map(|found| &found.study);
    let ground = study.map(|study| Ground::of(study, &args.workers)).transpose()?;
    let asks = began == Some(BackendName::Trl) || ground.as_ref().is_none_or(Ground::may_have_gpu);
    let trl = match asks {
        true => trl.and_then(|study| in_trl(study, args).map_err(|error| reason(&error))),
        false => Err(NOT_ASKED.to_owned()),
    };
    // Nothing is measured where nothing runs, nor where the answer changes nothing.
    let asking = match args.dry_run || began == Some(BackendName::Trl) {
        true => Asking::Kept,
        false => Asking::Once,
    };
    let beside = Beside {
        kernels: args.workers.kernels,
        stack: trl.as_ref().ok().map(|(_, stack)| stack),
        asking,
    };
    let standing = ground.map_or(Standing::Cpu, |ground| ground.standing(beside));
    Ok(Candidates {
        native: native.and_then(|found| standing.lack().map_or(Ok(found), Err)),
        trl,
        standing,
        began,
    })
}

/// The study in TRL, with the Python that was asked what it has.
fn in_trl(study: Study, args: &mut Args) -> Result<(Candidate, Stack), CliError> {
    let Backend::Trl(backend) = &study.backend else {
        return Err(CliError::bad("the trials of this study do not run in TRL"));
    };
    let begun = trl::begin(&study, backend, &mut args.workers).and_then(|()| args.workers.check_devices(&study));
    // The other engine has no use for it.
    let stack = args.workers.stack.take();
    begun?;
    let stack = stack.ok_or_else(|| CliError::bad("no Python was asked what it has"))?;
    let because = format!("{} has TRL", stack.interpreter.display());
    Ok((Candidate { study, because }, stack))
}

/// The study in the built-in engine, or why that cannot train it.
///
/// # Errors
/// Bad input: a model that is not there, or whose `config.json` cannot be read.
fn by_own_engine(study: Study, args: &Args) -> Result<Result<Candidate, String>, CliError> {
    if let Some(trainer) = study.base.as_ref().map(|base| base.trainer)
        && !trainer.is_sft()
    {
        return Ok(Err(format!("it has no `trainer: {trainer}`")));
    }
    let model = study.base.as_ref().map(|base| base.model.as_str());
    let config = model
        .map(|model| config_of(model, !args.dry_run))
        .transpose()?
        .flatten();
    let because = match config.map(|config| ModelFamily::read(&config)).transpose()? {
        Some(ModelFamily::Other(other)) => return Ok(Err(other.lack)),
        Some(ModelFamily::Known(known)) => format!("it has the family `{}`", known.family.name()),
        None => "the model is not here yet, and its family is taken for a known one".to_owned(),
    };
    let checked = args.workers.check_devices(&study);
    Ok(checked
        .map(|()| Candidate { study, because })
        .map_err(|error| reason(&error)))
}

/// The `config.json` of a model; `None` of one that is not on this machine where nothing is to be downloaded.
fn config_of(model: &str, may_download: bool) -> Result<Option<PathBuf>, CliError> {
    match model_folder(model) {
        Some(folder) => Ok(Some(folder.join("config.json"))),
        None if may_download => ModelFiles::resolve_config(model).map(Some).map_err(CliError::bad_input),
        None => Ok(None),
    }
}

/// The message of an error on one line: without the lines of the file that it is about.
fn reason(error: &CliError) -> String {
    match error {
        CliError::BadFile(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// The engine that the study of this name began in, where the database has one whose trials are trainings.
///
/// # Errors
/// Bad input: a database that cannot be read; a study that began in unsloth.
fn began_in(args: &Args, name_in_file: Option<&str>) -> Result<Option<BackendName>, CliError> {
    if !args.database.path().exists() {
        return Ok(None);
    }
    let studies = args.database.read(async |store| store.studies().all().await)?;
    let name = args.name.as_deref().or(name_in_file);
    let known = studies.iter().find(|known| Some(known.name.as_str()) == name);
    match known.map(|known| known.backend) {
        Some(BackendKind::Native) => Ok(Some(BackendName::Native)),
        Some(BackendKind::Trl) => Ok(Some(BackendName::Trl)),
        Some(BackendKind::Unsloth) => Err(CliError::bad(format!(
            "the study began in unsloth, and {NOT_UNSLOTH}: go on with `--backend unsloth`, or begin a study of its own with \
             `--as NEW_NAME`"
        ))),
        Some(BackendKind::Command) | None => Ok(None),
    }
}

impl Candidates {
    /// Why an engine is the one to take.
    fn why(&self, engine: BackendName) -> String {
        match (engine, &self.native, &self.trl) {
            (BackendName::Native, Ok(native), _) => format!("{}, and {}", native.because, self.standing.text()),
            (BackendName::Trl, Err(lack), Ok((trl, _))) => {
                format!(
                    "the built-in engine cannot train this study ({lack}), and {}",
                    trl.because
                )
            }
            (BackendName::Trl, Ok(_), Ok((trl, _))) => format!("{}, and {}", self.standing.text(), trl.because),
            (BackendName::Native, Err(lack), _) | (BackendName::Trl, _, Err(lack)) => lack.clone(),
            (BackendName::Unsloth, ..) => NOT_UNSLOTH.to_owned(),
        }
    }

    /// The study with an engine, whose Python the workers are told.
    ///
    /// # Errors
    /// Bad input: the study began in this engine, which cannot train it now.
    fn taken(self, engine: BackendName, args: &mut Args) -> Result<Study, CliError> {
        let lack = match (engine, self.native, self.trl) {
            (BackendName::Native, Ok(native), _) => return Ok(native.study),
            (BackendName::Trl, _, Ok((trl, stack))) => {
                args.workers.stack = Some(stack);
                return Ok(trl.study);
            }
            (BackendName::Native, Err(lack), _) | (BackendName::Trl, _, Err(lack)) => lack,
            (BackendName::Unsloth, ..) => NOT_UNSLOTH.to_owned(),
        };
        Err(CliError::bad(format!(
            "the study began in {} and goes on in nothing else, and now that cannot train it: {lack}; begin a study of its own with \
             `--as NEW_NAME`",
            engine.text()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_taken_where_the_other_cannot_be_and_trl_beside_a_gpu_of_its_own() {
        let (no_family, no_python) = ("it lacks the family `x`".to_owned(), "there is no Python".to_owned());
        let (cpu, beside) = (Standing::Cpu, Standing::WithoutGpu);
        assert_eq!(preferred(None, None, &cpu), Ok(BackendName::Native));
        assert_eq!(preferred(None, None, &beside), Ok(BackendName::Trl));
        assert_eq!(preferred(None, Some(&no_python), &beside), Ok(BackendName::Native));
        assert_eq!(preferred(Some(&no_family), None, &cpu), Ok(BackendName::Trl));
        let neither = preferred(Some(&no_family), Some(&no_python), &cpu).unwrap_err();
        assert!(
            neither.contains(&no_family) && neither.contains(&no_python),
            "{neither}"
        );
    }
}
