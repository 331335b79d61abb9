//! Reasons why a stack's need cannot be predicted.

/// A model, setting or device that nothing can be said of.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StackError {
    #[error("{file} is no JSON object; give the model's `config.json`")]
    NotAnObject { file: String },
    #[error("{file} has no `{key}`; give the `config.json` that came with the model")]
    Missing { file: String, key: String },
    #[error("{file}: `{key}` is {value}; it must be a whole number from 1 to {most}")]
    OutOfRange {
        file: String,
        key: String,
        value: String,
        most: u64,
    },
    #[error("`{key}` is {value}; it must be from 1 to {most}")]
    Setting { key: &'static str, value: u64, most: u64 },
    #[error("{stack} cannot run this setting: {what}; {instead}")]
    CannotRun {
        stack: &'static str,
        what: String,
        instead: String,
    },
}
