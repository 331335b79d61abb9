//! What runs the trials of a worker process.

use super::control::Control;
use super::{TrialEvent, TrialRequest};

/// A runner of trials.
pub(super) trait Runner {
    /// Runs one trial, and of those that have come by then the ones that run beside it, and tells how each ended.
    ///
    /// # Errors
    /// This process can run no further trial.
    fn run(
        &mut self,
        request: TrialRequest,
        more: &mut dyn FnMut() -> Option<TrialRequest>,
        control: &Control,
        emit: &mut dyn FnMut(TrialEvent),
    ) -> std::io::Result<()>;
}
