//! What a study found, in words and as JSON: which trial to take and why, what each parameter is worth, what failed.

mod contents;
mod explained;
mod failures;
mod text;

pub use contents::Explanation;
pub use explained::Explained;
pub use failures::{failure_message, reason_message};
pub use text::{explanation_text, importance_line};
