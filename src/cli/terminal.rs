//! The terminal that standard output goes to.

use std::io::IsTerminal;

/// Columns of the terminal, or `None` where standard output is no terminal.
pub fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let size = indicatif::console_width();
    size
}
