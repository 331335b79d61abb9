//! Writing results to stdout.

use std::io::{self, Write};

use super::CliError;

/// Writes a result to stdout. A reader that has seen enough (`| head`) is not an error.
pub fn write_result(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    unless_closed(written).map_err(CliError::failed)
}

/// Turns the error of a pipe whose reader has gone into success.
pub fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Columns of characters of the terminal that stdout is; `None` where it is none, so that files and pipes get all.
pub fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}
