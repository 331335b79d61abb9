//! How a command ends when it does not succeed.

use std::io::IsTerminal;

use crate::space::SpaceError;

/// A failed command; the variant decides the exit code.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Bad input or usage: exit code 2. The message names the file, the key and what to do.
    #[error("{0:#}")]
    BadInput(anyhow::Error),
    /// A mistake in a study or recipe file: exit code 2. Shown with the lines of the file that it is about.
    #[error("{}", .0.rendered(std::io::stderr().is_terminal()))]
    BadFile(Box<SpaceError>),
    /// Something failed while running: exit code 1.
    #[error("{0:#}")]
    Failed(anyhow::Error),
    /// A person stopped a search or a training: exit code 130, as a shell reports SIGINT.
    #[error("interrupted; `{command}` goes on from here")]
    Interrupted { command: String },
}

impl CliError {
    /// Bad input, from any error.
    pub fn bad_input(error: impl Into<anyhow::Error>) -> Self {
        Self::BadInput(error.into())
    }

    /// A failure while running, from any error.
    pub fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput(_) | Self::BadFile(_) => 2,
            Self::Failed(_) => 1,
            Self::Interrupted { .. } => 130,
        }
    }
}

impl From<SpaceError> for CliError {
    fn from(error: SpaceError) -> Self {
        Self::BadFile(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
}
