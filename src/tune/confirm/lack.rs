//! Longer trainings that were not made, and what they lack.

use super::lengths::{FIRST, Lengths};
use super::long_training::LongTrainings;
use super::repeated::Repeated;
use super::trainings::by_training;
use crate::tune::confirmation::Lack;
use crate::tune::schedule::Schedule;
use peft_tune_core::space::ConfirmPlan;

impl Schedule<'_> {
    /// What longer trainings lack; `None` where all that could say something were made as long as planned.
    pub(super) fn lack(&self, planned: Option<Lengths>, plan: &ConfirmPlan, repeated: &Repeated) -> Option<Lack> {
        match planned {
            None => self.lack_of_trainings(plan),
            Some(planned) => self.lack_of_time(planned, repeated),
        }
    }

    fn lack_of_time(&self, planned: Lengths, repeated: &Repeated) -> Option<Lack> {
        self.study.budget.time_s?;
        let finalists = self.finalists(repeated);
        let wanted = LongTrainings::new(self.study, planned, &finalists, &repeated.runs);
        wanted.next(finalists.recommended()?, finalists.given_up)?;
        Some(Lack::Time {
            longest: self.confirmation.runs_made().longer.iter().max().copied(),
            planned: planned.longest(),
        })
    }

    fn lack_of_trainings(&self, plan: &ConfirmPlan) -> Option<Lack> {
        let trainings = by_training(self.study, self.trials.all());
        let params = &trainings.values().flatten().next()?.params;
        let made = trainings.len() as u64;
        let trained = self.trained_for_loss()?;
        // One alone has nothing to be compared with, however long it trains.
        let enough = Lengths::enough_trainings(self.study, plan, params, made, trained).filter(|_| made > 1)?;
        Some(Lack::Trainings {
            made,
            enough,
            enough_with_time: self.study.budget.time_s.is_none().then_some(FIRST),
        })
    }
}
