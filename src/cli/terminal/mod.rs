//! The terminal: results, messages, lines that change, signals, questions. Only this folder writes to it.

pub(super) mod bar_target;
pub(super) mod confirm;
pub(super) mod download_progress;
pub(super) mod line_breaks;
pub(super) mod logging;
pub(super) mod output;
pub(super) mod reading_progress;
pub(super) mod signals;
pub(super) mod this_command;
