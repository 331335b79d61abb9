//! `export --check`: what the tool that is installed in the user's Python says of the exported files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde::Deserialize;

use crate::cli::CliError;
use crate::cli::processes::printed::{last_words, output_within};
use crate::cli::terminal::output::tell;
use crate::export::ExportFormat;
use crate::report::{duration, printable};
use crate::space::Seconds;

/// Reads the files with the tool, and prints a line of JSON for each folder.
const READER: &str = include_str!("installed.py");
/// Python that is run where none is named.
const PYTHON: &str = "python3";
/// Time that reading takes at most: PyTorch alone can take a minute to import from a cold disk.
const WITHIN: Seconds = Seconds(180.0);

/// Whether the installed tool is asked, and where it is.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(super) struct CheckArgs {
    /// Read the written files with the tool as it is installed for --python, and fail where it refuses them.
    #[arg(long)]
    pub check: bool,
    /// Python that has the tool, such as `.venv/bin/python` [default: python3]
    #[arg(long, value_name = "PATH", requires = "asked_tool")]
    pub python: Option<PathBuf>,
    /// Time that reading may take [default: 3m]
    #[arg(long, value_name = "TIME", requires = "check")]
    pub check_within: Option<Seconds>,
}

/// What the reader says of one folder.
#[derive(Debug, Deserialize)]
struct Verdict {
    outcome: Outcome,
    version: Option<String>,
    #[serde(default)]
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Accepted,
    Refused,
    /// The Python has no such package.
    Missing,
    /// The package cannot be imported, or is too different a version.
    Unusable,
}

impl CheckArgs {
    /// The Python that has the tool.
    pub(super) fn python(&self) -> &Path {
        self.python.as_deref().unwrap_or(Path::new(PYTHON))
    }

    /// Refuses options of the check that do not go with `format`.
    ///
    /// # Errors
    /// Bad input: `--check` of what no other tool reads.
    pub(super) fn is_for(&self, format: Option<ExportFormat>) -> Result<(), CliError> {
        match (self.check, format.and_then(ExportFormat::tool)) {
            (true, None) => Err(CliError::bad(
                "no training tool reads this format, so that none can check it: export it without --check",
            )),
            _ => Ok(()),
        }
    }

    /// Lets the tool read what lies in `folders`; a line for each that it accepts.
    ///
    /// # Errors
    /// Files that it refuses; that it is not installed, cannot be used or took too long.
    pub(super) fn run(&self, format: ExportFormat, folders: &[PathBuf]) -> Result<(), CliError> {
        if !self.check || folders.is_empty() {
            return Ok(());
        }
        let python = self.python();
        let output = self.ask(python, format, folders)?;
        let verdicts = verdicts_of(&output, python, folders.len())?;
        let mut refused = Vec::new();
        for (folder, verdict) in folders.iter().zip(verdicts) {
            let mut names = format.file_names().into_iter().map(|name| folder.join(name));
            let file = names.find(|file| file.is_file());
            let file = file.unwrap_or_else(|| folder.join(format.file_name()));
            let (file, python) = (file.display(), python.display());
            let tool = format!(
                "{} {}",
                format.name(),
                verdict.version.as_deref().unwrap_or("(of no version)")
            );
            let message = printable(&verdict.message);
            match verdict.outcome {
                Outcome::Accepted => tell(format_args!("{tool} accepts {file}: {message}")),
                Outcome::Refused => refused.push(format!("{tool} in {python} refuses {file}: {message}")),
                Outcome::Missing => {
                    return Err(CliError::NotChecked(format!(
                        "{} is not installed in {python}: install it there (`{python} -m pip install {}`), or name another \
                         Python with --python",
                        format.name(),
                        format.name()
                    )));
                }
                Outcome::Unusable => {
                    return Err(CliError::NotChecked(format!(
                        "{tool} in {python} cannot be used: {message}"
                    )));
                }
            }
        }
        match refused.is_empty() {
            true => Ok(()),
            false => Err(CliError::ToolRefuses(refused.join("\n"))),
        }
    }

    /// What the reader prints.
    fn ask(&self, python: &Path, format: ExportFormat, folders: &[PathBuf]) -> Result<Output, CliError> {
        let within = self.check_within.unwrap_or(WITHIN).0;
        let mut command = Command::new(python);
        command
            .args(["-c", READER, format.name()])
            .args(folders)
            // A file in the current folder may have the name of a package.
            .env("PYTHONSAFEPATH", "1");
        let limit = Duration::try_from_secs_f64(within).map_err(CliError::bad_input)?;
        match output_within(command, limit) {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(CliError::NotChecked(format!(
                "{} did not say within {} what {} makes of the files; give it longer with --check-within",
                python.display(),
                duration(within),
                format.name()
            ))),
            Err(error) => Err(CliError::NotChecked(format!(
                "cannot start {}: {error}; name a Python that has {} with --python",
                python.display(),
                format.name()
            ))),
        }
    }
}

fn verdicts_of(output: &Output, python: &Path, folders: usize) -> Result<Vec<Verdict>, CliError> {
    let lines = String::from_utf8_lossy(&output.stdout);
    let verdicts: Result<Vec<Verdict>, _> = lines.lines().map(serde_json::from_str).collect();
    match verdicts {
        Ok(verdicts) if verdicts.len() == folders => Ok(verdicts),
        _ => Err(CliError::NotChecked(format!(
            "{} ended with {} before it said what it makes of the files; its last words: {}",
            python.display(),
            output.status,
            last_words(&output.stderr).unwrap_or_else(|| "nothing".to_owned())
        ))),
    }
}
