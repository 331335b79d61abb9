//! How many runs a confirmation is expected to take, and how long: for people who wait. Runs end early where values are known well
//! enough, so this is no promise.

use super::longer::Lengths;
use super::{Confirming, Repeat, Repeated, Tuner, is_cost, is_training};
use crate::space::Backend;
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, THROUGHPUT};
use peft_tune_core::recipe::{EpochSteps, Recipe};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::TrialNumber;

/// What is expected of a confirmation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::tune) struct Expected {
    pub(in crate::tune) runs: u64,
    pub(in crate::tune) seconds: f64,
}

/// Runs of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Runs {
    longer: u64,
    seeds: u64,
    costs: u64,
}

impl Runs {
    fn of(repeated: &Repeated) -> Self {
        let mut runs = Self::default();
        for run in repeated.runs.values().flatten() {
            runs.longer += u64::from(run.value(LONGER_TOKENS).is_some());
            runs.seeds += u64::from(is_training(run));
            runs.costs += u64::from(is_cost(run));
        }
        runs
    }
}

/// Seconds of a trial, and of the profile phase that repeats its cost.
#[derive(Clone, Copy, Debug)]
struct Pace {
    trial_s: f64,
    cost_s: f64,
}

impl Tuner<'_> {
    /// What the confirmation is expected to take when the trials are over.
    pub(in crate::tune) fn expected_confirmation(&self) -> Expected {
        let Some(plan) = self.parts.study.confirm.filter(|_| !self.standing.trials_are_over) else {
            return Expected::default();
        };
        self.expected(&plan, Runs::default(), None)
    }

    /// Says which run comes next.
    pub(super) fn tell_of_confirmation(&mut self, number: TrialNumber, repeat: Repeat, repeated: &Repeated) {
        let plan = self.parts.study.confirm.unwrap_or_default();
        let expected = self.expected(&plan, Runs::of(repeated), Some(repeat));
        let done: usize = repeated.runs.values().map(Vec::len).sum();
        let one = Confirming {
            number,
            repeat,
            run: done as u64 + 1,
            of: done as u64 + expected.runs.max(1),
        };
        let mut progress = self.progress();
        progress.confirm_s = expected.seconds;
        self.parts.observer.confirming(&one, &progress);
    }

    /// What is left after `done` from a run of kind `next` on. Longer trainings come first, those with other seeds then, and costs last.
    fn expected(&self, plan: &ConfirmPlan, done: Runs, next: Option<Repeat>) -> Expected {
        let pace = self.pace(plan);
        let trainings = self.trainings_at_end();
        let study = self.parts.study;
        let is_native = study.backend == Backend::Native;
        let trains = is_native && study.plan.train.is_some() && self.problem_needs(LOSS);
        let mut expected = Expected::default();
        let mut add = |runs: u64, seconds: f64| {
            expected.runs += runs;
            expected.seconds += runs as f64 * seconds;
        };
        let is_before = |kind: u8| match next {
            Some(Repeat::Longer { .. }) | None => true,
            Some(Repeat::Loss { .. }) => kind > 0,
            Some(Repeat::Cost) => kind > 1,
        };
        if trains && is_before(0) {
            for times in self
                .lengths_at_end(plan, trainings)
                .iter()
                .flat_map(|one| one.left_after(done.longer))
            {
                add(1, times * pace.trial_s);
            }
        }
        if trains && is_before(1) {
            let most = plan.trainings(trainings).min(plan.trials * plan.repeats);
            add(most.saturating_sub(done.seeds), pace.trial_s);
        }
        if !is_native || self.problem_needs(THROUGHPUT) {
            let most = plan.in_all.limit(trainings).min(plan.repeats);
            add(most.saturating_sub(done.costs), pace.cost_s);
        }
        expected
    }

    fn lengths_at_end(&self, plan: &ConfirmPlan, trainings: u64) -> Option<Lengths> {
        let params = &self.history.first()?.params;
        Lengths::after(self.parts.study, plan, (params, trainings), self.trained?)
    }

    /// Trainings that the study will have made: those of its budget, as far as the time lasts.
    fn trainings_at_end(&self) -> u64 {
        let (budget, done) = (&self.parts.study.budget, self.standing.counted());
        if self.standing.trials_are_over {
            return done;
        }
        let by_time = budget.time_s.filter(|_| done > 0).map(|seconds| {
            let left = (seconds - self.spent_s).max(0.0);
            done + (left * done as f64 / self.spent_s.max(1e-9)) as u64
        });
        let all = [budget.trials, by_time].into_iter().flatten();
        all.min().unwrap_or(done)
    }

    fn pace(&self, plan: &ConfirmPlan) -> Pace {
        let counted = self.standing.counted().max(1) as f64;
        let trial_s = self.trial_s.unwrap_or(self.spent_s / counted);
        Pace {
            trial_s,
            cost_s: self.cost_s(plan).unwrap_or(trial_s),
        }
    }

    /// Seconds of a profile phase that repeats a cost, at the best throughput so far.
    fn cost_s(&self, plan: &ConfirmPlan) -> Option<f64> {
        let throughput = *self.standing.best.get(THROUGHPUT)?;
        let (rows, tokens) = self.trained?;
        let base: &Recipe = self.parts.study.base.as_ref()?;
        let params = &self.history.first()?.params;
        let recipe = crate::space::recipe_for(self.parts.study, params).ok();
        let batch = recipe.as_ref().map_or(&base.batch, |recipe| &recipe.batch);
        let warmup = self
            .parts
            .study
            .plan
            .measure
            .as_ref()
            .map_or(0, |measure| measure.max_warmup_steps);
        let step_rows = EpochSteps::new(rows, batch).rows_per_full_step();
        let step_tokens = step_rows as f64 * tokens as f64 / rows.max(1) as f64;
        Some((plan.steps + warmup + 1) as f64 * step_tokens / throughput)
    }
}
