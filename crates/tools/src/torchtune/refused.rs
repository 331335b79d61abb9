//! What the file cannot say at all.

use crate::Tool;
use crate::export::RenderError;

/// The error that a field has no form in torchtune.
pub(super) fn refused(field: &'static str, reason: &'static str) -> RenderError {
    RenderError::Refused {
        tool: Tool::Torchtune,
        field,
        reason,
    }
}
