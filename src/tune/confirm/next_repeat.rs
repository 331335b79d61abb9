//! The run that confirms the recommendation next.

use super::finalists::{Finalists, next_trial};
use super::lengths::Lengths;
use super::long_training::LongTrainings;
use super::repeat::Repeat;
use super::repeated::Repeated;
use super::seeds::SeedRuns;
use crate::tune::confirmation::is_cost;
use crate::tune::needed_metrics::needed;
use crate::tune::schedule::Schedule;
use peft_tune_core::objective::{LOSS, THROUGHPUT};
use peft_tune_core::recipe::TrainedRows;
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{Params, TrialNumber};

impl Schedule<'_> {
    /// The next run, where there is time for it. The loss comes before the cost: it decides whose cost is worth
    /// knowing.
    pub(super) fn next_repeat(&self, repeated: &Repeated, plan: &ConfirmPlan) -> Option<(TrialNumber, Repeat)> {
        let has_time =
            |(number, repeat): &(TrialNumber, Repeat)| self.has_time_for_run(*number, *repeat, repeated, plan);
        let finalists = self.finalists(repeated);
        let longer = self.next_longer(&finalists, repeated);
        let longer = longer.map(|(number, tokens)| (number, Repeat::Longer { tokens }));
        if let Some(one) = longer.filter(has_time) {
            return Some(one);
        }
        let runs = self.seed_runs(repeated);
        let again = runs.as_ref().and_then(|runs| runs.next(&finalists, plan));
        let again = again.map(|(number, seed_offset)| (number, Repeat::Loss { seed_offset }));
        if let Some(one) = again.filter(has_time) {
            return Some(one);
        }
        if runs.is_some() && !self.problem_needs(THROUGHPUT) {
            return None;
        }
        let limit = plan.in_all.limit(self.trials.complete());
        let done = repeated
            .runs
            .values()
            .flatten()
            .filter(|run| runs.is_none() || is_cost(run));
        if done.count() as u64 >= limit {
            return None;
        }
        let finalists = Finalists {
            loss_noise: runs.as_ref().map(SeedRuns::noise),
            ..finalists
        };
        Some((next_trial(&finalists, plan)?, Repeat::Cost)).filter(has_time)
    }

    pub(super) fn problem_needs(&self, metric: &str) -> bool {
        needed(self.problem).contains(&metric)
    }

    /// The trainings with other seeds; `None` where the program has no training phase of its own, or no loss matters.
    pub(super) fn seed_runs(&self, repeated: &Repeated) -> Option<SeedRuns> {
        let study = self.study;
        let trains = study.backend.trains_recipes() && study.plan.train.is_some();
        (trains && self.problem_needs(LOSS)).then(|| SeedRuns::new(study, self.trials.all(), &repeated.runs))
    }

    /// The setting to train beyond all others before the finalists are trained longer, which has to fit into so many
    /// seconds: a finalist's in a faster precision, or at half its learning rate.
    pub(in crate::tune) fn for_longer(&self, left_s: f64) -> Option<Params> {
        let plan = self.study.confirm?;
        let planned = self.planned_lengths(&plan)?;
        let none = Repeated {
            lengths: self.fitting_lengths(planned, &plan, left_s),
            ..Repeated::default()
        };
        let finalists = self.finalists(&none);
        let recommended = finalists.recommended()?;
        let longer = self.longer(&finalists, &none)?;
        let is_tried = |params: &Params| self.trials.is_tried(params);
        let expected = |params: &Params| self.predictions?.throughput(params);
        let faster = longer.faster_precision(recommended, &is_tried, &expected);
        faster.or_else(|| longer.lower_rate(recommended).filter(|params| !is_tried(params)))
    }

    fn next_longer(&self, finalists: &Finalists<'_>, repeated: &Repeated) -> Option<(TrialNumber, u64)> {
        let longer = self.longer(finalists, repeated)?;
        longer.next(finalists.recommended()?, finalists.given_up)
    }

    pub(super) fn longer<'a>(&'a self, finalists: &Finalists<'a>, repeated: &Repeated) -> Option<LongTrainings<'a>> {
        let lengths = repeated.lengths?;
        Some(LongTrainings::new(self.study, lengths, finalists, &repeated.runs))
    }

    /// The lengths of longer trainings, were there time enough; `None` where there are none to be made.
    pub(super) fn planned_lengths(&self, plan: &ConfirmPlan) -> Option<Lengths> {
        Lengths::of(self.study, plan, self.trials.all(), self.trained_for_loss()?)
    }

    /// Rows that trainings go over; `None` where they are not known, the program has no training of its own, or no loss matters.
    pub(super) fn trained_for_loss(&self) -> Option<TrainedRows> {
        let trains = self.study.backend.trains_recipes() && self.problem_needs(LOSS);
        self.confirmation.trained().filter(|_| trains)
    }

    /// The lengths of longer trainings that fit into so many seconds beside the first repeats of a cost.
    pub(super) fn fitting_lengths(&self, planned: Lengths, plan: &ConfirmPlan, left_s: f64) -> Option<Lengths> {
        let left_s = left_s - self.first_costs_s(plan);
        let made = &self.confirmation.runs_made().longer;
        planned.fitting(made, &|tokens| self.longer_s(tokens, &planned), left_s)
    }

    pub(super) fn finalists<'a>(&'a self, repeated: &'a Repeated) -> Finalists<'a> {
        Finalists {
            problem: self.problem,
            history: self.trials.all(),
            confirmations: &repeated.confirmations,
            given_up: &repeated.given_up,
            loss_noise: None,
        }
    }
}
