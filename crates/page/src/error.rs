//! Reasons why a question has no answer.

use peft_tune_core::predict::PredictError;
use peft_tune_core::predict::stack::StackError;
use peft_tune_core::quantity::QuantityError;
use peft_tune_tools::UnknownTool;
use peft_tune_tools::import::StackFileError;
use peft_tune_tools::plan::{PlanError, SHARING_NAMES};

/// A question that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    #[error("the page asked wrongly: {0}")]
    Question(serde_json::Error),
    #[error("no model: paste the text of its config.json, or drop its folder")]
    NoModel,
    #[error("no stack: choose the tool that trains, or give its file")]
    NoStack,
    #[error("`{name}` is {value}; write {legal}")]
    Setting { name: String, value: String, legal: String },
    #[error("there is no sharing `{0}`; write {names}", names = SHARING_NAMES)]
    Sharing(String),
    #[error(transparent)]
    Price(#[from] QuantityError),
    #[error(transparent)]
    Device(#[from] PredictError),
    #[error(transparent)]
    Tool(#[from] UnknownTool),
    #[error(transparent)]
    File(#[from] StackFileError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Stack(#[from] StackError),
}
