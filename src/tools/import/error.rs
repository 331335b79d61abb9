//! Why a file of another tool could not be read.

use std::path::PathBuf;

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
        "{} has no key that tells its tool; give a file of {known}, or an adapter_config.json, or name the tool with --stack",
        path.display()
    )]
    UnknownTool {
        path: PathBuf,
        /// The tools that there are.
        known: String,
    },
    #[error("{}: `{key}` is {value}; {instead}", path.display())]
    Value {
        path: PathBuf,
        key: String,
        value: String,
        /// What to write in its place.
        instead: &'static str,
    },
    #[error("{}: by `{words}` {tool} {what}; {instead}", path.display())]
    OtherTask {
        path: PathBuf,
        /// What says so: a key with its value, or a command.
        words: String,
        /// The tool as messages call it.
        tool: &'static str,
        /// Rest of a sentence that begins with the tool.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
}
