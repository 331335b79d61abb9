//! Why a file of another tool could not be read.

use std::path::PathBuf;

use peft_tune_core::plan::ExpressionError;

/// A file that nothing can be planned from.
#[derive(Debug, thiserror::Error)]
pub enum StackFileError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than {} MiB, which no settings file is; give the tool's own file", path.display(), largest >> 20)]
    TooLarge { path: PathBuf, largest: u64 },
    #[error(
        "{} holds more than 1 MiB of code, or lines that are indented like those of no program; give the tool's settings file",
        path.display()
    )]
    LongScript { path: PathBuf },
    #[error("{} is no notebook that can be read: {message}; save it in the format 4, or give a script", path.display())]
    Notebook { path: PathBuf, message: String },
    #[error(
        "{} is a script, and scripts are not read in a browser: read it by `peft-tune plan --check`, or give a settings file",
        path.display()
    )]
    NoScripts { path: PathBuf },
    #[error("{file} makes no trainer that is known here; {instead}, or a settings file of a tool")]
    NoTraining {
        file: String,
        /// What to do.
        instead: &'static str,
    },
    #[error("{} is neither YAML, JSON nor a line of arguments: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error(
        "{} has no key that tells its tool; give a file of {known}, or an adapter_config.json, or name the tool with --stack",
        path.display()
    )]
    UnknownTool {
        path: PathBuf,
        /// The tools that there are.
        known: String,
    },
    #[error("{} is a config of {title}, which is not read: {instead}", path.display())]
    Foreign {
        path: PathBuf,
        /// The program that it is for.
        title: &'static str,
        /// What to write in its place.
        instead: &'static str,
    },
    #[error("{} starts `{program}` with {config}; give that file, with what the command changes of it", path.display())]
    Starts {
        path: PathBuf,
        program: String,
        /// File that the program reads its settings from.
        config: String,
    },
    #[error("{location}: `{key}` is {value}; {instead}")]
    Value {
        /// The file, with the place in it where that is known.
        location: String,
        key: String,
        value: String,
        /// What to write in its place.
        instead: &'static str,
    },
    #[error("the expression `{expression}` of the target modules: {reason}")]
    Expression {
        expression: String,
        reason: ExpressionError,
    },
    #[error("{location}: {what}; {instead}")]
    OtherTask {
        /// The file, with the place in it where that is known.
        location: String,
        /// What is done by it, with the words that say so.
        what: String,
        /// What to do.
        instead: &'static str,
    },
}
