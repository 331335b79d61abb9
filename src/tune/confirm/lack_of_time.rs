//! Longer trainings that a budget of time does not allow.

use super::Repeated;
use super::long_training::{Lengths, LongTrainings};
use crate::tune::schedule::Schedule;

/// Longer trainings of the finalists that are missing or shorter than planned, as there was no time for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LackOfTime {
    /// Tokens of the longest training that was made; `None` where there was no time for any.
    pub longest: Option<u64>,
    /// Tokens that the longest trainings would have had, were there time enough.
    pub planned: u64,
}

impl Schedule<'_> {
    /// Longer trainings that there was no time for; `None` where all that could say something were made as long as
    /// planned.
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
