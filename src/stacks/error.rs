//! Why a file of another tool could not be read.

use std::path::PathBuf;

use peft_tune_core::predict::stack::StackError;

/// A file that nothing can be planned from.
#[derive(Debug, thiserror::Error)]
pub enum StackFileError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than 4 MiB, which no settings file is; give the tool's own file", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} is neither YAML, JSON nor a line of arguments: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error(
        "{} has no key that tells its tool; give a file of TRL, axolotl, LLaMA-Factory or torchtune, or an adapter_config.json, \
         or name the tool with --stack",
        path.display()
    )]
    UnknownTool { path: PathBuf },
    #[error("{}: `{key}` is {value}; {instead}", path.display())]
    Value {
        path: PathBuf,
        key: String,
        value: String,
        /// What to write in its place.
        instead: &'static str,
    },
    #[error("{} names no model; add `{key}`, or give its folder with --model", path.display())]
    NoModel { path: PathBuf, key: &'static str },
    #[error("{}: {source}", path.display())]
    Setting { path: PathBuf, source: StackError },
}
