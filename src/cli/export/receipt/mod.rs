//! `export --receipt`: ten steps of an exported file in the tool that it is for, beside the built-in engine's from the same adapter.
//!
//! | stage | module |
//! |---|---|
//! | the tool's own steps, from its own reading of its file | `receipt.py`, `tool_run` |
//! | its rows beside the engine's | `row_match`, `row_difference` |
//! | the engine's steps on the tool's rows | `engine_run` |
//! | what differs, by its key | `findings` |
//! | the receipt | `evidence`, `taken`, `text`, `command` |

mod command;
mod engine_run;
mod evidence;
mod findings;
mod row_difference;
mod row_match;
mod taken;
mod text;
mod tool_run;

pub(super) use command::{Exported, run};
