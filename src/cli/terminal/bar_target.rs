//! The terminal on which a progress bar is drawn.
//!
//! A bar fills its last line with blanks. A terminal echoes Ctrl-C as `^C` where the cursor is, and behind a full line that is the line
//! below: whoever takes the bar away from there leaves its first line standing. So the last blanks are left out, and bars leave some
//! columns free for the echo.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressDrawTarget, TermLike};

/// Columns of a terminal that does not say how many it has.
const USUAL_WIDTH: u16 = 80;
/// Rows of a terminal that does not say how many it has.
const USUAL_HEIGHT: u16 = 24;
/// Columns that stay free: those of `^C`, and the last one, as some terminals go on below when it is filled.
const FREE: usize = 3;
/// Most drawings of a bar in a second.
const DRAWN_PER_S: u8 = 20;

/// Target that bars are drawn on: standard error where that is a terminal, else none.
pub(in crate::cli) fn target() -> ProgressDrawTarget {
    let usual = ProgressDrawTarget::stderr();
    match usual.is_hidden() {
        true => usual,
        false => ProgressDrawTarget::term_like_with_hz(Box::<Screen>::default(), DRAWN_PER_S),
    }
}

/// Columns that the last line of a bar may fill.
pub(in crate::cli) fn width() -> usize {
    usize::from(columns()).saturating_sub(FREE).max(1)
}

fn columns() -> u16 {
    terminal_size::terminal_size_of(io::stderr()).map_or(USUAL_WIDTH, |(width, _)| width.0)
}

/// Standard error as a terminal, written when it is flushed.
#[derive(Debug, Default)]
struct Screen(Mutex<String>);

impl Screen {
    fn waiting(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the cursor by so many places in the direction of a letter (ECMA-48, section 8.3).
    fn moved(&self, count: usize, direction: char) -> io::Result<()> {
        if count > 0 {
            // Writing to a string cannot fail.
            let _ = write!(self.waiting(), "\u{1b}[{count}{direction}");
        }
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        columns()
    }

    fn height(&self) -> u16 {
        terminal_size::terminal_size_of(io::stderr()).map_or(USUAL_HEIGHT, |(_, height)| height.0)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.waiting().extend([text, "\n"]);
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.waiting().push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\u{1b}[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let text = std::mem::take(&mut *self.waiting());
        let mut stderr = io::stderr().lock();
        stderr.write_all(text.trim_end_matches(' ').as_bytes())?;
        stderr.flush()
    }
}
