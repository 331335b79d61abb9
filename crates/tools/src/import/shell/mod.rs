//! Scripts of a shell: their commands by words, with the variables that they say put in.

mod arithmetic;
mod blocks;
mod commands;
mod expansion;
mod splitter;
mod variables;
mod word;

pub(crate) use splitter::commands_of;
pub(crate) use word::Word;
