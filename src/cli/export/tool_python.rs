//! The user's Python that has a training tool: how a script is run in it, and what the script says of the tool.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde::Deserialize;

use crate::cli::CliError;
use crate::cli::processes::printed::{last_words, output_within};
use crate::report::printable;
use crate::space::Seconds;

/// A Python, and the tool that it is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolPython<'a> {
    pub path: &'a Path,
    pub tool: &'static str,
}

/// What a script answers: what the tool did, or why it did not.
#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Answer<T> {
    #[serde(alias = "accepted", alias = "trained")]
    Done(T),
    Refused(Said),
    /// The Python has no such package.
    Missing,
    /// The package cannot be imported, or is too different a version.
    Unusable(Said),
}

/// Words of a tool.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    pub version: Option<String>,
    #[serde(default)]
    pub message: String,
}

impl ToolPython<'_> {
    /// A command that starts this Python, without its words.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(self.path);
        // A file in the current folder may have the name of a package.
        command.env("PYTHONSAFEPATH", "1");
        command
    }

    /// Runs a command of this Python to its end; `None` where it does not come `within` this time.
    ///
    /// # Errors
    /// A Python that cannot be started; bad input where no clock has such a time.
    pub(super) fn output(&self, command: Command, within: Seconds) -> Result<Option<Output>, CliError> {
        let limit = Duration::try_from_secs_f64(within.0).map_err(CliError::bad_input)?;
        output_within(command, limit).map_err(|error| {
            CliError::NotChecked(format!(
                "cannot start {}: {error}; name a Python that has {} with --python",
                self.path.display(),
                self.tool
            ))
        })
    }

    /// The error of a Python that ended `before` its script had answered.
    pub(super) fn ended(&self, output: &Output, before: &str) -> CliError {
        CliError::NotChecked(format!(
            "{} ended with {} before {before}; its last words: {}",
            self.path.display(),
            output.status,
            last_words(&output.stderr).unwrap_or_else(|| "nothing".to_owned())
        ))
    }

    /// The tool by its name and version.
    pub(super) fn versioned(&self, version: Option<&str>) -> String {
        format!("{} {}", self.tool, version.unwrap_or("(of no version)"))
    }

    /// What the tool did, where it `refuses` in these words what it is given.
    ///
    /// # Errors
    /// What it refuses; that it is not installed, or cannot be used.
    pub(super) fn done<T>(&self, answer: Answer<T>, refuses: &str) -> Result<T, CliError> {
        let (python, tool) = (self.path.display(), self.tool);
        let told = |said: Said, what: &str| {
            let tool = self.versioned(said.version.as_deref());
            format!("{tool} in {python} {what}: {}", printable(&said.message))
        };
        match answer {
            Answer::Done(done) => Ok(done),
            Answer::Refused(said) => Err(CliError::ToolRefuses(told(said, refuses))),
            Answer::Missing => Err(CliError::NotChecked(format!(
                "{tool} is not installed in {python}: install it there (`{python} -m pip install {tool}`), or name another Python \
                 with --python"
            ))),
            Answer::Unusable(said) => Err(CliError::NotChecked(told(said, "cannot be used"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_of_a_script_is_told_in_its_words() {
        let python = ToolPython {
            path: Path::new("python"),
            tool: "trl",
        };
        let told = |text: &str| {
            let answer: Answer<Said> = serde_json::from_str(text).unwrap();
            python
                .done(answer, "refuses it")
                .map(|said| said.message)
                .map_err(|error| error.to_string())
        };
        let accepted = told(r#"{"outcome": "accepted", "version": "1.2", "message": "rank 8"}"#);
        assert_eq!(accepted.as_deref(), Ok("rank 8"));
        let refused = told(r#"{"outcome": "refused", "version": "1.2", "message": "no such key"}"#);
        assert_eq!(refused.unwrap_err(), "trl 1.2 in python refuses it: no such key");
        let unusable = told(r#"{"outcome": "unusable", "version": null, "message": "too old"}"#);
        assert_eq!(
            unusable.unwrap_err(),
            "trl (of no version) in python cannot be used: too old"
        );
        assert_eq!(
            told(r#"{"outcome": "missing"}"#).unwrap_err(),
            "trl is not installed in python: install it there (`python -m pip install trl`), or name another Python with --python"
        );
    }
}
