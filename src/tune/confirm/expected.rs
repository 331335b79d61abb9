//! Runs that a confirmation is expected to take, and their seconds: for people who wait, for trials that leave time for
//! them, and for runs that have to fit into what is left. Runs end early where values are known well enough, so this is
//! no promise.

use super::finalists::FEWEST_STEPS;
use super::lengths::Lengths;
use super::repeat::{Repeat, Stage};
use super::repeated::Repeated;
use crate::space::recipe_for;
use crate::tune::confirmation::RunsMade;
use crate::tune::cost_survey::measured_share;
use crate::tune::schedule::Schedule;
use peft_tune_core::objective::{LOSS, THROUGHPUT};
use peft_tune_core::recipe::{EpochSteps, Recipe, TrainedRows};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::TrialNumber;

/// Repeats of a cost that give it an interval: time is kept for them before all others.
const FEWEST_COSTS: u64 = 2;
/// Share of a budget of time that repeats of costs may take, beyond the first ones.
const SHARE_FOR_COSTS: f64 = 0.1;
/// Share of a budget of time that one repeat of a cost should take at most.
const SHARE_FOR_ONE: f64 = 0.03;
/// Settings that are expected to be tried for the sake of longer trainings: the finalists' at half their rates.
const TRIED_FIRST: f64 = 2.0;
/// Seconds of a training with its evaluations, as a multiple of those of its steps.
const WITH_EVALUATIONS: f64 = 1.1;

/// Runs that are expected of a confirmation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::tune) struct ExpectedRuns {
    pub(in crate::tune) runs: u64,
    pub(in crate::tune) seconds: f64,
}

/// Runs that a confirmation has before it.
struct Ahead<'a> {
    made: &'a RunsMade,
    /// Stage of the next run.
    next: Stage,
    /// Lengths of longer trainings, where there are to be any.
    lengths: Option<Lengths>,
    /// Trainings that the study will have made.
    trainings: u64,
    /// Seconds that there are for the runs.
    left_s: f64,
}

impl ExpectedRuns {
    /// Adds as many of `runs` as fit into `left_s` with those added before; each takes `seconds`.
    fn add(&mut self, runs: u64, seconds: f64, left_s: f64) {
        let fitting = match seconds > 0.0 {
            true => ((left_s - self.seconds).max(0.0) / seconds) as u64,
            false => runs,
        };
        let runs = runs.min(fitting);
        self.runs += runs;
        self.seconds += runs as f64 * seconds;
    }
}

impl Schedule<'_> {
    /// The runs that the confirmation is expected to take in a study of so many trainings, with the settings that are
    /// tried before it for its sake.
    pub(in crate::tune) fn expected_confirmation(&self, trainings: u64) -> ExpectedRuns {
        let Some(plan) = self.study.confirm.filter(|_| !self.confirmation.trials_are_over()) else {
            return ExpectedRuns::default();
        };
        if self.confirmation.is_done() {
            // Of what a few more trials may put in the recommended one's place.
            let mut expected = ExpectedRuns::default();
            expected.add(FEWEST_COSTS, self.cost_s(&plan), f64::INFINITY);
            return expected;
        }
        let lengths = self.lengths_at_end(&plan, trainings);
        let mut expected = self.expected(
            &plan,
            &Ahead {
                made: self.confirmation.runs_made(),
                next: Stage::LongerTrainings,
                lengths,
                trainings,
                left_s: f64::INFINITY,
            },
        );
        let tries_first = lengths.is_some_and(|lengths| lengths.favour_lower_rates());
        if tries_first && self.confirmation.runs_made().longer.is_empty() {
            expected.seconds += TRIED_FIRST * self.trial_s();
        }
        expected
    }

    /// The runs that are expected from `next` on, the run that comes next.
    pub(super) fn expected_from(&self, plan: &ConfirmPlan, next: Repeat, lengths: Option<Lengths>) -> ExpectedRuns {
        self.expected(
            plan,
            &Ahead {
                made: self.confirmation.runs_made(),
                next: next.stage(),
                lengths,
                trainings: self.trials.finished_trials().counted(),
                left_s: self.left_s().max(0.0),
            },
        )
    }

    /// The runs that are left, stage by stage.
    fn expected(&self, plan: &ConfirmPlan, ahead: &Ahead<'_>) -> ExpectedRuns {
        let study = self.study;
        let trains_recipes = study.backend.trains_recipes();
        let trains = trains_recipes && study.plan.train.is_some() && self.problem_needs(LOSS);
        let mut expected = ExpectedRuns::default();
        let comes = |stage: Stage| ahead.next <= stage;
        if let Some(lengths) = ahead.lengths.filter(|_| trains && comes(Stage::LongerTrainings)) {
            for tokens in lengths.left(&ahead.made.longer) {
                expected.add(1, self.longer_s(tokens, &lengths), ahead.left_s);
            }
        }
        if trains && comes(Stage::OtherSeeds) {
            let most = plan.trainings(ahead.trainings).min(plan.trials * plan.repeats);
            expected.add(most.saturating_sub(ahead.made.seeds), self.trial_s(), ahead.left_s);
        }
        if !trains_recipes || self.problem_needs(THROUGHPUT) {
            let most = plan.in_all.limit(ahead.trainings).min(plan.repeats);
            let costs = most.saturating_sub(ahead.made.costs).min(self.costs_in_share(plan));
            expected.add(costs, self.cost_s(plan), ahead.left_s);
        }
        expected
    }

    /// Whether a run that confirms a trial may begin: it has to fit into the time that is left beside the first repeats
    /// of a cost.
    pub(super) fn has_time_for_run(
        &self,
        number: TrialNumber,
        repeat: Repeat,
        repeated: &Repeated,
        plan: &ConfirmPlan,
    ) -> bool {
        let costs_s = self.first_costs_s(plan);
        if repeat == Repeat::Cost && self.costs_in_share(plan) == 0 {
            return false;
        }
        self.has_time_behind(match repeat {
            Repeat::Cost => self.cost_s(plan),
            Repeat::Loss { .. } => self.trial_s() + costs_s,
            Repeat::Longer { tokens } => {
                let own = self
                    .trials
                    .get(number)
                    .and_then(|trial| trial.state.metrics()?.value(THROUGHPUT));
                let by_speed = own.filter(|own| *own > 0.0).map(|own| training_s(tokens, own));
                let by_trials = || repeated.lengths.map(|lengths| self.longer_s(tokens, &lengths));
                by_speed.or_else(by_trials).unwrap_or(0.0) + costs_s
            }
        })
    }

    /// Seconds that are kept for the first repeats of a cost.
    pub(super) fn first_costs_s(&self, plan: &ConfirmPlan) -> f64 {
        if self.study.backend.trains_recipes() && !self.problem_needs(THROUGHPUT) {
            return 0.0;
        }
        FEWEST_COSTS.saturating_sub(self.confirmation.runs_made().costs) as f64 * self.cost_s(plan)
    }

    /// Repeats of costs that still fit into their share of a budget of time: the first ones in any case.
    fn costs_in_share(&self, plan: &ConfirmPlan) -> u64 {
        let first = FEWEST_COSTS.saturating_sub(self.confirmation.runs_made().costs);
        let Some(budget_s) = self.study.budget.time_s else {
            return u64::MAX;
        };
        let left_s = SHARE_FOR_COSTS * budget_s - self.confirmation.runs_made().costs_s;
        match self.cost_s(plan) {
            one_s if one_s > 0.0 => first.max((left_s.max(0.0) / one_s) as u64),
            _ => u64::MAX,
        }
    }

    /// Measured steps of a repeat of a cost: the plan's, or as many as fit into what one should take of a short budget of time.
    pub(super) fn steps_of_cost(&self, plan: &ConfirmPlan) -> u64 {
        let Some(budget_s) = self.study.budget.time_s else {
            return plan.steps;
        };
        let (Some(fewer_s), Some(all_s)) = (self.profile_s(0), self.profile_s(plan.steps)) else {
            return plan.steps;
        };
        let one_s = (all_s - fewer_s) / plan.steps.max(1) as f64;
        let fitting = (SHARE_FOR_ONE * budget_s - fewer_s) / one_s;
        (fitting.max(0.0) as u64).clamp(FEWEST_STEPS.min(plan.steps), plan.steps)
    }

    fn lengths_at_end(&self, plan: &ConfirmPlan, trainings: u64) -> Option<Lengths> {
        let params = &self.trials.all().first()?.params;
        Lengths::after(self.study, plan, params, trainings, self.confirmation.trained()?)
    }

    /// Trainings that the study will have made: those of its budget, as far as the time lasts.
    pub(in crate::tune) fn trainings_at_end(&self) -> u64 {
        let (budget, done) = (&self.study.budget, self.trials.finished_trials().counted());
        if self.confirmation.trials_are_over() {
            return done;
        }
        let by_time = budget.time_s.and(self.clock.trial_s()).map(|trial_s| {
            let left_s = self.left_for_trials_s().max(0.0);
            done.saturating_add((left_s / trial_s) as u64)
        });
        let all = [budget.trials, by_time].into_iter().flatten();
        all.min().unwrap_or(done)
    }

    /// Seconds of a trial; 0 before anything is known.
    fn trial_s(&self) -> f64 {
        self.clock.trial_s().unwrap_or(0.0)
    }

    /// Seconds of a repeat of a cost: as earlier ones took, or else as steps at the best throughput so far do.
    fn cost_s(&self, plan: &ConfirmPlan) -> f64 {
        let known = self.clock.cost_s().or_else(|| self.profile_s(self.steps_of_cost(plan)));
        known.unwrap_or_else(|| self.trial_s())
    }

    /// Seconds of a longer training. A trial's time has more in it than training, and may have been cut short: the larger of what
    /// both it and the best throughput so far say.
    pub(super) fn longer_s(&self, tokens: u64, lengths: &Lengths) -> f64 {
        let by_trials = lengths.times(tokens) * self.trial_s();
        let best = self
            .trials
            .finished_trials()
            .best()
            .get(THROUGHPUT)
            .filter(|best| **best > 0.0);
        best.map_or(by_trials, |best| training_s(tokens, *best).max(by_trials))
    }

    /// Seconds of a trial's profile phase; `None` where it has none, or nothing is known of it.
    pub(in crate::tune) fn measuring_s(&self) -> Option<f64> {
        self.profile_s(self.study.plan.measure.as_ref()?.steps)
    }

    /// Seconds of a profile phase of so many steps, at the best throughput so far.
    fn profile_s(&self, steps: u64) -> Option<f64> {
        let throughput = *self.trials.finished_trials().best().get(THROUGHPUT)?;
        let TrainedRows { rows, tokens } = self.confirmation.trained()?;
        let base: &Recipe = self.study.base.as_ref()?;
        let params = &self.trials.all().first()?.params;
        let made = recipe_for(self.study, params).ok();
        let recipe = made.as_ref().unwrap_or(base);
        let warmup = self
            .study
            .plan
            .measure
            .as_ref()
            .map_or(0, |measure| measure.max_warmup_steps);
        let step_rows = EpochSteps::new(rows, &recipe.batch).rows_per_full_step();
        let step_tokens = step_rows as f64 * tokens as f64 / rows.max(1) as f64;
        // The step on the longest rows is a whole one.
        let whole_steps = 1.0 + measured_share(self.study, recipe) * (steps + warmup) as f64;
        Some(whole_steps * step_tokens / throughput)
    }
}

fn training_s(tokens: u64, throughput: f64) -> f64 {
    WITH_EVALUATIONS * tokens as f64 / throughput
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_expected_as_far_as_they_fit() {
        let mut expected = ExpectedRuns::default();
        expected.add(3, 2.0, 7.0);
        assert_eq!((expected.runs, expected.seconds), (3, 6.0));
        expected.add(4, 2.0, 9.0);
        assert_eq!((expected.runs, expected.seconds), (4, 8.0));
        expected.add(5, 0.0, 8.0);
        expected.add(5, 1.0, f64::INFINITY);
        assert_eq!((expected.runs, expected.seconds), (14, 13.0));
        expected.add(1, 1.0, 0.0);
        assert_eq!(expected.runs, 14);
    }
}
