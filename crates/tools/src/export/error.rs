//! Why a tool's file cannot say a recipe.

use crate::Tool;

/// A recipe that a tool cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error(
        "the recipe has no adapter (it trains every parameter), so there is nothing to say in {tool}; use --format recipe or trl"
    )]
    NoAdapter { tool: Tool },
    #[error("{tool} refuses `{field}` here: {reason}")]
    Refused {
        tool: Tool,
        field: &'static str,
        /// Ends in what to do.
        reason: &'static str,
    },
}
