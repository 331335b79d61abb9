//! [`Cause`]: why a run was slower, or took more memory, than was expected.

use serde::{Deserialize, Serialize};

/// One cause, with what shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cli::watch) struct Cause {
    /// Name of the rule.
    pub name: String,
    /// The numbers that say so.
    pub evidence: String,
    /// What to do.
    pub advice: String,
    /// Share of the run's time that it may have taken, where that can be said.
    pub share: Option<f64>,
}

impl Cause {
    pub(super) fn new(name: &str, evidence: impl Into<String>, advice: &str) -> Self {
        Self {
            name: name.to_owned(),
            evidence: evidence.into(),
            advice: advice.to_owned(),
            share: None,
        }
    }

    pub(super) fn taking(self, share: f64) -> Self {
        Self {
            share: Some(share.clamp(0.0, 1.0)),
            ..self
        }
    }
}
