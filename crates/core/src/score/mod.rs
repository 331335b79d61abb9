//! How generated answers are scored: what is generated, what counts as right, and how sure a share of right ones is.

mod exact_match;
mod extract;
mod json_path;
mod normalize;
mod plan;
mod wilson;

pub use exact_match::{ExactMatch, Matcher};
pub use extract::{Extract, ExtractError, Take};
pub use json_path::{JsonPath, JsonPathError};
pub use normalize::Normalize;
pub use plan::{ScoreCommand, ScorePlan};
pub use wilson::wilson;
