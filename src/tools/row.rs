//! [`ToolRow`]: all that is to be known of a tool.

use peft_tune_core::predict::stack::StackBehaviour;

/// What is to be known of a tool.
pub(super) struct ToolRow {
    /// As the command line and study files have it.
    pub name: &'static str,
    /// Other names for it in study files.
    pub aliases: &'static [&'static str],
    /// How it trains, for what a setting needs there.
    pub memory: StackBehaviour,
}
