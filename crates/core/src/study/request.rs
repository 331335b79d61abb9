//! Requests that a person makes of a study that another process runs.

use serde::{Deserialize, Serialize};

use super::Params;

/// A person's request to a running study. It is written to the database, and the study loop takes it between trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "params")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum StudyRequest {
    /// Start no further trial until asked to continue.
    Pause,
    /// Continue after a pause.
    Resume,
    /// End the search after the trials under way.
    Stop,
    /// Run this setting before the sampler is asked again.
    Enqueue(Params),
}

impl StudyRequest {
    /// Name of the kind as the database holds it.
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// The setting to run, for a request that has one.
    pub fn params(&self) -> Option<&Params> {
        match self {
            Self::Enqueue(params) => Some(params),
            Self::Pause | Self::Resume | Self::Stop => None,
        }
    }
}
