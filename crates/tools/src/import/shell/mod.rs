//! Scripts of a shell: their commands by words, with the variables that they say put in.

mod arithmetic;
mod blocks;
mod commands;
mod expansion;
mod shell_script;
mod sources;
mod splitter;
mod variables;
mod word;

pub(crate) use commands::{Command, Unread};
pub(crate) use shell_script::ShellScript;
pub(crate) use sources::Beside;
pub(crate) use word::Word;
