//! The one way to the terminal: results to standard output, messages to standard error. Neither panics where nobody reads or
//! the disk is full, as `println!` does.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

use super::line_breaks::fitted;
use crate::cli::CliError;

/// The bar that the terminal shows, if any. The terminal is one, whoever writes to it: what is written while the bar is drawn would be
/// drawn over.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Writes all messages above this bar from now on.
pub(in crate::cli) fn keep_below(bar: ProgressBar) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

/// Takes the bar off the screen for good, where there is one.
pub(in crate::cli) fn take_bar_away() {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// Writes while no bar is drawn.
fn above<T>(write: impl FnOnce() -> T) -> T {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for a log: its lines stand above the bar.
pub(super) struct Messages;

impl Write for Messages {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        above(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Writes a result for people to stdout, in lines that a terminal does not break in words. A reader that has seen enough (`| head`)
/// is not an error.
pub(in crate::cli) fn write_result(text: &str) -> Result<(), CliError> {
    write_exact(&fitted(text, terminal_width()))
}

/// Writes a result as it is: a path, a script, what a model said.
pub(in crate::cli) fn write_exact(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(clean(text).as_bytes()).and_then(|()| stdout.flush());
    unless_closed(written).map_err(CliError::failed)
}

/// Writes a message to standard error as a line. Who closed it or let it run full wants no messages.
pub(in crate::cli) fn tell(message: impl fmt::Display) {
    let message = message.to_string();
    let message = format!("{}\n", clean(&fitted(&message, messages_width())));
    // At once, so that no two threads' lines mix.
    let _ = above(|| io::stderr().write_all(message.as_bytes()));
}

/// The first failure of things that do not need each other; the other failures are told.
///
/// # Errors
/// Where anything failed.
pub(in crate::cli) fn first_failure(ends: impl IntoIterator<Item = Result<(), CliError>>) -> Result<(), CliError> {
    let mut failures = ends.into_iter().filter_map(Result::err);
    let first = failures.next();
    failures.for_each(|failure| tell(format_args!("error: {}", failure.shown())));
    first.map_or(Ok(()), Err)
}

/// Writes a message to standard error as it is.
pub(in crate::cli) fn tell_part(message: impl fmt::Display) {
    let _ = above(|| write!(io::stderr(), "{message}"));
}

/// A line on standard output of a command that goes on whoever reads it.
pub(in crate::cli) fn show(line: impl fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// A part of a line on standard output, written at once.
pub(in crate::cli) fn show_part(part: impl fmt::Display) {
    let mut stdout = io::stdout();
    let _ = write!(stdout, "{part}").and_then(|()| stdout.flush());
}

/// The text without characters that steer a terminal: names and messages in it come from files and databases of others. They are
/// written as JSON escapes them: JSON may hold some of them bare, and stays JSON.
fn clean(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\r' => clean.push_str("\\r"),
            c if steers(c) => clean.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// Turns the error of a pipe whose reader has gone into success.
pub(in crate::cli) fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Columns of characters of the terminal that stdout is; `None` where it is none, so that files and pipes get all.
pub(in crate::cli) fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Columns of characters of the terminal that standard error is; `None` where it is none.
pub(in crate::cli) fn messages_width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| usize::from(width.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert_eq!(clean("a\tb\nc"), "a\tb\nc");
        assert_eq!(clean("a\u{1b}[2J\n\rb\n"), "a\\u001b[2J\n\\rb\n");
    }

    #[test]
    fn json_stays_json() {
        let text = "a\u{85}b\u{7f}\u{1b}\r\n\"";
        let written = serde_json::to_string_pretty(&[text]).unwrap();
        let read: Vec<String> = serde_json::from_str(&clean(&written)).unwrap();
        assert_eq!(read, [text]);
    }
}
