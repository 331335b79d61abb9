//! What of the longer trainings a budget of time does not allow.

use super::Repeated;
use super::long_training::{Lengths, LongTrainings};
use crate::tune::schedule::Schedule;

/// That longer trainings of the finalists are missing or shorter than planned, as there was no time for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LackOfTime {
    /// Tokens of the longest that were made; `None` where there was no time for any.
    pub longest: Option<u64>,
    /// Tokens that they would have had, were there time enough.
    pub planned: u64,
}

impl Schedule<'_> {
    /// What there was no time for; `None` where all longer trainings that could say something were made as long as planned.
    pub(super) fn lack_of_time(&self, planned: Option<Lengths>, repeated: &Repeated) -> Option<LackOfTime> {
        let planned = planned.filter(|_| self.study.budget.time_s.is_some())?;
        let finalists = self.finalists(repeated);
        let wanted = LongTrainings::new(self.study, planned, &finalists, &repeated.runs);
        wanted.next(finalists.recommended()?, finalists.given_up)?;
        Some(LackOfTime {
            longest: self.confirmation.runs_made().longer.iter().max().copied(),
            planned: planned.longest(),
        })
    }
}
