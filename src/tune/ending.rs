//! The end of a study's run.

use crate::store::EndingRecord;

/// The reason why a study's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The budget's trials are done.
    TrialsDone,
    /// The budget's time is spent.
    TimeSpent,
    /// The sampler has nothing left to propose.
    Exhausted,
    /// A stop was requested.
    Interrupted,
    /// The study's stopping rule found that further trials bring next to nothing.
    Stopped { reason: String },
}

impl Ending {
    /// The ending as the database keeps it, after so many finished trials.
    pub(super) fn record(&self, trials: u64) -> EndingRecord {
        let (kind, reason) = match self {
            Self::TrialsDone => ("trials_done", "the budget's trials are done"),
            Self::TimeSpent => ("time_spent", "the budget's time is spent"),
            Self::Exhausted => ("exhausted", "the sampler has nothing left to propose"),
            Self::Interrupted => ("interrupted", "it was asked to stop"),
            Self::Stopped { reason } => ("stopped", reason.as_str()),
        };
        EndingRecord {
            kind: kind.to_owned(),
            reason: reason.to_owned(),
            trials,
        }
    }
}
