//! Longer trainings that a budget of time does not allow.

use super::lengths::Lengths;
use super::long_training::LongTrainings;
use super::repeated::Repeated;
use crate::tune::confirmation::LackOfTime;
use crate::tune::schedule::Schedule;

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
