//! How a command ends when it does not succeed. `docs/exit-codes.md` lists the codes for users.

use std::io::IsTerminal;
use std::path::Path;

use crate::cli::exit_codes::{
    BAD_INPUT, DATABASE, DOES_NOT_FIT, ENGINES_DIFFER, FAILED, INPUT_CHANGED, MAY_NOT_FIT, NOT_CHECKED, TAKEN,
    TOOL_REFUSES, WORKERS,
};
use crate::report::printable;
use crate::space::SpaceError;
use crate::store::StoreError;
use crate::tune::TuneError;
use peft_tune_core::study::with_causes;

/// A failed command; the variant decides the exit code.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Bad input or usage: exit code 2. The message names the file, the key and what to do.
    #[error("{}", with_causes(.0.as_ref()))]
    BadInput(anyhow::Error),
    /// A mistake in a study or recipe file: exit code 2. Shown with the lines of the file that it is about.
    #[error("{}", .0.rendered(std::io::stderr().is_terminal()))]
    BadFile(Box<SpaceError>),
    /// Something failed while running: exit code 1.
    #[error("{}", with_causes(.0.as_ref()))]
    Failed(anyhow::Error),
    /// The results database failed while it was used: locked, full, no longer to be written. Exit code 3.
    #[error("{}", with_causes(.0.as_ref()))]
    Database(anyhow::Error),
    /// Another process runs the study: exit code 4.
    #[error("{}", with_causes(.0.as_ref()))]
    Taken(anyhow::Error),
    /// No worker can be kept alive: exit code 5.
    #[error("{}", with_causes(.0.as_ref()))]
    Workers(anyhow::Error),
    /// A file that trials read was changed under way: exit code 6.
    #[error("{}", with_causes(.0.as_ref()))]
    InputChanged(anyhow::Error),
    /// A setting that was planned does not fit: exit code 7. The plan was printed.
    #[error("the setting does not fit the device; the plan's levers say what would save memory")]
    DoesNotFit,
    /// A setting may fit, but less than the reserve would be left: exit code 8. The plan was printed.
    #[error("it is uncertain whether the setting fits: less than the reserve would be left")]
    MayNotFit,
    /// The tool that exported files are for refuses them: exit code 9. They were written.
    #[error("{0}")]
    ToolRefuses(String),
    /// The tool that exported files are for could not be asked: exit code 10. They were written.
    #[error("{0}")]
    NotChecked(String),
    /// Two engines that trained the same do not agree: exit code 11. The comparison was printed.
    #[error("the engines do not agree: {0}")]
    EnginesDiffer(String),
    /// A person or a scheduler stopped a search or a training: exit code 128 and the signal's number, as shells have it;
    /// 130 for Ctrl-C and requests.
    #[error("interrupted; `{command}` continues from here")]
    Interrupted { command: String, code: u8 },
    /// A command to watch could not be started: exit code 126 or 127, as shells have it.
    #[error("cannot run `{program}`: {reason}")]
    NotStarted { program: String, reason: String, code: u8 },
    /// A watched command ended with this exit code, which its report told.
    #[error("the command ended with exit code {code}")]
    CommandEnded { code: u8 },
    /// A search that was started in the background ended at once, with this exit code; what it said was passed on.
    #[error("the search ended as soon as it started; its log is {log}")]
    Detached { log: String, code: u8 },
}

impl CliError {
    /// The message as a terminal may have it: names in it, such as a study's, cannot steer it.
    pub fn shown(&self) -> String {
        let text = self.to_string();
        match self {
            // Drawn with colours for terminals; the file's lines in it are the user's own.
            Self::BadFile(_) => text,
            _ => text.split('\n').map(printable).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Bad input, from any error.
    pub fn bad_input(error: impl Into<anyhow::Error>) -> Self {
        Self::BadInput(error.into())
    }

    /// Bad input that a message says all of.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::BadInput(anyhow::Error::msg(message.into()))
    }

    /// A file or folder that cannot be written, which `option` names.
    pub(super) fn cannot_write(path: &Path, error: &std::io::Error, option: &str) -> Self {
        let path = path.display();
        Self::bad(format!(
            "cannot write {path}: {error}; choose another path with `{option}`"
        ))
    }

    /// A failure while running, from any error.
    pub fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput(_) | Self::BadFile(_) => BAD_INPUT,
            Self::Failed(_) => FAILED,
            Self::Database(_) => DATABASE,
            Self::Taken(_) => TAKEN,
            Self::Workers(_) => WORKERS,
            Self::InputChanged(_) => INPUT_CHANGED,
            Self::DoesNotFit => DOES_NOT_FIT,
            Self::MayNotFit => MAY_NOT_FIT,
            Self::ToolRefuses(_) => TOOL_REFUSES,
            Self::NotChecked(_) => NOT_CHECKED,
            Self::EnginesDiffer(_) => ENGINES_DIFFER,
            Self::Interrupted { code, .. }
            | Self::Detached { code, .. }
            | Self::NotStarted { code, .. }
            | Self::CommandEnded { code } => *code,
        }
    }
}

impl From<SpaceError> for CliError {
    fn from(error: SpaceError) -> Self {
        Self::BadFile(Box::new(error))
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        match &error {
            _ if error.is_bad_input() => Self::bad_input(error),
            StoreError::StudyRunning { .. } => Self::Taken(error.into()),
            _ if error.is_of_the_file() => Self::Database(error.into()),
            _ => Self::failed(error),
        }
    }
}

impl From<TuneError> for CliError {
    fn from(error: TuneError) -> Self {
        match error {
            // What was good input when the search began failed since.
            TuneError::Store(error) => Self::Database(error.into()),
            TuneError::Evaluator(_) | TuneError::WorkersLost { .. } => Self::Workers(error.into()),
            TuneError::InputChanged { .. } => Self::InputChanged(error.into()),
            TuneError::Rehearsal { .. } | TuneError::FailAlike { .. } => Self::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::file::StudyFile;

    #[test]
    fn a_mistake_in_a_file_is_bad_input_and_shows_its_line() {
        let error = StudyFile::parse(Path::new("space.yaml"), "seed: x\n", Default::default()).unwrap_err();
        let error = CliError::from(error);
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(
            text.starts_with("space.yaml:1:7: key `seed`:") && text.contains("1 │ seed: x"),
            "{text}"
        );
    }

    #[test]
    fn a_name_in_a_message_cannot_steer_the_terminal() {
        let error = CliError::failed(anyhow::anyhow!("no study `\u{1b}[31m`:\n  it has `é`"));
        assert_eq!(error.shown(), "no study `\\u{1b}[31m`:\n  it has `é`");
    }

    #[test]
    fn a_cause_that_the_message_quotes_is_not_told_again() {
        let source = std::io::Error::other("the disk is full");
        let path = "a.db".into();
        let error = CliError::from(StoreError::Io { path, source });
        assert_eq!(error.to_string(), "a.db: the disk is full");
    }

    /// Scripts rely on these codes.
    #[test]
    fn every_ending_keeps_its_exit_code() {
        let error = || anyhow::anyhow!("x");
        let interrupted = |code| CliError::Interrupted {
            command: String::new(),
            code,
        };
        let all = [
            CliError::Failed(error()),
            CliError::BadInput(error()),
            CliError::Database(error()),
            CliError::Taken(error()),
            CliError::Workers(error()),
            CliError::InputChanged(error()),
            CliError::EnginesDiffer("x".to_owned()),
            interrupted(129),
            interrupted(130),
            interrupted(143),
        ];
        assert_eq!(
            all.map(|error| error.exit_code()),
            [1, 2, 3, 4, 5, 6, 11, 129, 130, 143]
        );
    }
}
