//! A trace that PyTorch's profiler writes in a watched run, read when the run has ended.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::cli::CliError;
use crate::cli::profile::read::read_trace;
use crate::report::{ProfileText, findings_text, profile_text};
use peft_tune_engine::profile::Profile;
use peft_tune_engine::profile::diagnosis::Finding;

/// A trace as `profile --read` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TraceReport {
    pub profile: Profile,
    pub diagnosis: Vec<Finding>,
}

impl TraceReport {
    /// Reads the file.
    ///
    /// # Errors
    /// Bad input: no trace of PyTorch's profiler, or one that is cut off.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let (profile, diagnosis) = read_trace(path)?;
        Ok(Self { profile, diagnosis })
    }

    /// Tables and findings in at most `width` columns of characters.
    pub(super) fn text(&self, width: Option<usize>) -> String {
        let shown = ProfileText {
            width,
            ..ProfileText::default()
        };
        profile_text(&self.profile, &shown) + "\n" + &findings_text(&self.diagnosis)
    }
}

/// A file that a run is to write its trace to.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedTrace<'a> {
    path: &'a Path,
    /// Last change and length of a file that was there before.
    before: Option<(SystemTime, u64)>,
}

impl<'a> ExpectedTrace<'a> {
    /// Looks at the file before the run begins.
    pub(super) fn at(path: &'a Path) -> Self {
        Self {
            path,
            before: stamp_of(path),
        }
    }

    /// Reads what the run has written.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn read(&self) -> Result<TraceReport, String> {
        let path = self.path.display();
        match stamp_of(self.path) {
            None => Err(format!("the run wrote no trace {path}")),
            after if after == self.before => Err(format!(
                "the trace {path} is not of this run, which left it as it was; `profile --read` reads it"
            )),
            Some(_) => TraceReport::read(self.path).map_err(|error| error.to_string()),
        }
    }
}

fn stamp_of(path: &Path) -> Option<(SystemTime, u64)> {
    // A pipe would be waited for.
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    Some((metadata.modified().ok()?, metadata.len()))
}
