//! Plans in a browser: what a setting needs in another tool, as `peft-tune plan` predicts it.
//!
//! The page asks one question in JSON and gets one answer in JSON ([`answer`]). The plan in it is that of `plan --json`, made by the
//! same functions of `peft-tune-tools`. No file is opened and nothing is asked of a network: the texts of files are parts of the question.

mod cost;
#[cfg(target_family = "wasm")]
mod door;
mod error;
mod form;
mod menu;
mod numbers;
mod planned;
mod published;
mod question;

use serde_json::{Value, json};

use error::PageError;
use question::Question;

/// The answer to a question, both as JSON: an object with `error` where there is none.
pub fn answer(question: &str) -> String {
    let answer = answered(question).unwrap_or_else(|error| json!({"error": error.to_string()}));
    answer.to_string()
}

fn answered(question: &str) -> Result<Value, PageError> {
    match serde_json::from_str(question).map_err(PageError::Question)? {
        Question::Menu => Ok(menu::menu()),
        Question::Plan(asked) => planned::planned(&asked),
    }
}

#[cfg(test)]
mod tests;
