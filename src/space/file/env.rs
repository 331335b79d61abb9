//! Environment variables as they are written.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Values as YAML has them: numbers and truth values are passed on as they are written.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    })
}
