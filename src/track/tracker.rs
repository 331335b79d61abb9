//! What a tracker does with a study.

use super::{TrackError, TrackedStudy, TrackedTrial};

/// Keeps a study somewhere else up to date.
pub trait Tracker: Send {
    /// Brings what is there to what some trials are now. It is called again with the same trials after a failure, by another
    /// process after a kill, and with what the trials became later: what is there already is not written twice.
    fn take(&mut self, study: &TrackedStudy, trials: &[&TrackedTrial]) -> Result<(), TrackError>;

    /// Brings what is told of the study as a whole, such as which trial to take: now all of its trials were taken.
    fn finish(&mut self, _study: &TrackedStudy) -> Result<(), TrackError> {
        Ok(())
    }
}
