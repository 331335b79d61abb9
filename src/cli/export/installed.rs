//! `export --check`: what the tool that is installed in the user's Python says of the exported files.

use std::path::{Path, PathBuf};
use std::process::Output;

use super::tool_python::{Answer, Said, ToolPython};
use crate::cli::CliError;
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
        let python = ToolPython {
            path: self.python(),
            tool: format.name(),
        };
        let output = self.ask(&python, folders)?;
        let answers = answers_in(&output, &python, folders.len())?;
        let mut refused = Vec::new();
        for (folder, answer) in folders.iter().zip(answers) {
            let mut names = format.file_names().into_iter().map(|name| folder.join(name));
            let file = names.find(|file| file.is_file());
            let file = file.unwrap_or_else(|| folder.join(format.file_name()));
            let file = file.display();
            match python.done(answer, &format!("refuses {file}")) {
                Ok(Said { version, message }) => tell(format_args!(
                    "{} accepts {file}: {}",
                    python.versioned(version.as_deref()),
                    printable(&message)
                )),
                Err(CliError::ToolRefuses(told)) => refused.push(told),
                Err(error) => return Err(error),
            }
        }
        match refused.is_empty() {
            true => Ok(()),
            false => Err(CliError::ToolRefuses(refused.join("\n"))),
        }
    }

    /// What the reader prints.
    fn ask(&self, python: &ToolPython<'_>, folders: &[PathBuf]) -> Result<Output, CliError> {
        let within = self.check_within.unwrap_or(WITHIN);
        let mut command = python.command();
        command.args(["-c", READER, python.tool]).args(folders);
        python.output(command, within)?.ok_or_else(|| {
            CliError::NotChecked(format!(
                "{} did not say within {} what {} makes of the files; give it longer with --check-within",
                python.path.display(),
                duration(within.0),
                python.tool
            ))
        })
    }
}

/// What the reader says of each folder.
fn answers_in(output: &Output, python: &ToolPython<'_>, folders: usize) -> Result<Vec<Answer<Said>>, CliError> {
    let lines = String::from_utf8_lossy(&output.stdout);
    let answers: Result<Vec<Answer<Said>>, _> = lines.lines().map(serde_json::from_str).collect();
    match answers {
        Ok(answers) if answers.len() == folders => Ok(answers),
        _ => Err(python.ended(output, "it said what it makes of the files")),
    }
}
