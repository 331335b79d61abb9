//! A place of the key `track` as it is written.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::space::TrackerKind;

/// A tracker and where it keeps studies: `tensorboard=runs`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct TrackEntry(pub String);

impl JsonSchema for TrackEntry {
    fn schema_name() -> Cow<'static, str> {
        "Tracker".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let forms = TrackerKind::ALL.map(|kind| match kind {
            // Where its own environment says.
            TrackerKind::Mlflow => "mlflow(=.+)?".to_owned(),
            other => format!("{}=.+", other.name()),
        });
        json_schema!({"type": "string", "pattern": format!("^({})$", forms.join("|"))})
    }
}
