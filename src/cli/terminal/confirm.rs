//! Asking before something is lost.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::cli::CliError;

/// Asks on the terminal; without one, `--yes` has to say so.
pub(in crate::cli) fn confirm(question: &str, yes: bool) -> Result<bool, CliError> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{question} Nobody can answer here: give `--yes` if that is what you want"
        )));
    }
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ")
        .and_then(|()| stderr.flush())
        .map_err(CliError::failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(CliError::failed)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
