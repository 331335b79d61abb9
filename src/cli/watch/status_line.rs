//! A line at the foot of the terminal while the command writes above it.
//!
//! Design note: a bar of indicatif is drawn below what its own program writes. Here another program writes, bars of its own that it
//! draws over too, and may be in the middle of a line. So the last line of the terminal is taken out of what scrolls (DECSTBM), and
//! each drawing is one write that puts the cursor back where it was.

use std::io::{self, Write};

use super::relay::ALL_LINES;
use crate::cli::terminal::line_breaks::cut;

/// Fewest lines and columns of a terminal that gives one away.
const LEAST_LINES: u16 = 6;
const LEAST_COLUMNS: u16 = 20;

/// The line, where standard error is a terminal that can have one.
#[derive(Debug, Default)]
pub(super) struct StatusLine {
    /// Lines of the terminal as it was when the last one was taken.
    taken: Option<u16>,
}

impl StatusLine {
    /// Draws a text, which is put together only where it shows.
    pub(super) fn draw(&mut self, text: impl FnOnce() -> String) {
        let Some((lines, columns)) = size() else { return };
        let begin = match self.taken {
            Some(taken) if taken == lines => String::new(),
            _ => taking(lines, self.taken.is_none()),
        };
        self.taken = Some(lines);
        let shown = cut(&text(), usize::from(columns).saturating_sub(1));
        put(&format!("{begin}\u{1b}7\u{1b}[{lines};1H\u{1b}[2K{shown}\u{1b}8"));
    }

    /// Gives the line back.
    pub(super) fn end(&mut self) {
        if let Some(lines) = self.taken.take() {
            put(&format!("\u{1b}7\u{1b}[{lines};1H\u{1b}[2K\u{1b}8{ALL_LINES}"));
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sequence that takes the last line out of what scrolls. The first time the text moves up where it fills that line.
fn taking(lines: u16, is_first: bool) -> String {
    // IND keeps the column, as a line feed need not.
    let room = if is_first { "\u{1b}D\u{1b}[1A" } else { "" };
    format!("{room}\u{1b}7\u{1b}[1;{}r\u{1b}8", lines - 1)
}

/// Lines and columns of the terminal; `None` where there is none, or one that has no room or does not move its cursor.
fn size() -> Option<(u16, u16)> {
    if std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb") {
        return None;
    }
    // In the background the lines are those of the program in the foreground.
    // SAFETY: questions about a descriptor and this process; without a controlling terminal the first answers -1.
    let (front, own) = unsafe { (libc::tcgetpgrp(libc::STDERR_FILENO), libc::getpgrp()) };
    if front != -1 && front != own {
        return None;
    }
    let (columns, lines) = terminal_size::terminal_size_of(io::stderr())?;
    (lines.0 >= LEAST_LINES && columns.0 >= LEAST_COLUMNS).then_some((lines.0, columns.0))
}

/// Writes at once, so that nothing of the command comes between.
fn put(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_taken_once_and_the_cursor_goes_back() {
        assert_eq!(taking(24, true), "\u{1b}D\u{1b}[1A\u{1b}7\u{1b}[1;23r\u{1b}8");
        assert_eq!(taking(24, false), "\u{1b}7\u{1b}[1;23r\u{1b}8");
    }
}
