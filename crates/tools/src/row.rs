//! [`ToolRow`]: all that is to be known of a tool.

use serde_json::Value;

use super::export::ExportRow;
use super::import::ImportRow;
use super::keys::ToolKeys;
use super::known_keys::KnownKeys;
use peft_tune_core::architecture::Family;
use peft_tune_core::predict::stack::StackBehaviour;

/// What is to be known of a tool.
pub(super) struct ToolRow {
    /// Name on the command line and in study files.
    pub name: &'static str,
    /// Name in messages.
    pub title: &'static str,
    /// Other names for it in study files.
    pub aliases: &'static [&'static str],
    /// Keys by which the tool's file says what recipes have.
    pub keys: ToolKeys,
    /// Keys of its schema that recipes have no word for.
    pub known: KnownKeys,
    /// Names that the tool has for the parts of a family, where it builds models by functions of its own; `null` for
    /// one that it has none of.
    pub family: Option<fn(Family) -> Value>,
    /// Writer of the tool's file.
    pub export: ExportRow,
    /// Reader of the tool's file.
    pub import: ImportRow,
    /// Behaviour of the tool in training, for what a setting needs there.
    pub memory: StackBehaviour,
}
