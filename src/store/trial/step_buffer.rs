//! [`StepBuffer`]: steps that an open database has not written yet.

use std::collections::HashMap;
use std::time::Instant;

use super::trial_id::TrialId;
use crate::store::{StepRecord, StudyId};
use peft_tune_core::study::TrialNumber;

/// Steps that wait to be written.
#[derive(Debug, Default)]
pub(in crate::store) struct StepBuffer {
    pub(super) waiting: Vec<(TrialId, StepRecord)>,
    /// Moment at which the first waiting step came.
    pub(super) since: Option<Instant>,
    /// Ids of the trials that this process runs, so that a step does not ask for its trial's.
    pub(super) running: HashMap<(StudyId, TrialNumber), TrialId>,
}
