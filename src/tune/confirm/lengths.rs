//! Lengths of longer trainings: how many of them there are, and of how many tokens each, as far as the tokens and the time last.

use super::trainings::by_training;
use crate::space::{Study, recipe_for};
use peft_tune_core::recipe::{TrainedRows, TrainingLength};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{Params, Trial};

/// Trainings of a length between, where there are tokens for them, and how many go on to the longest.
pub(super) const FIRST: u64 = 4;
pub(super) const THEN: u64 = 2;
/// Trainings above which no study is too small for longer ones.
const MANY: u64 = 100;
/// Share of the full length above which a training goes all the way, though it takes a little more than the tokens that there are.
const NEARLY: f64 = 0.8;
/// Multiple of a trial's tokens from which on a training counts as longer.
const LONGER: f64 = 1.5;
/// Multiple of a trial's tokens up to which half a learning rate hardly wins where the whole one did: the best rates of 3 times as
/// many tokens were still those of the short trainings (docs/benchmarks.md).
const LOWERS_RATE: f64 = 3.0;
/// Least length of the longest training where the search is to find how long the full one should be, in trainings of a
/// trial, however short an epoch is.
const LEAST_TIMES: u64 = 3;
/// Shares of the tokens of longer trainings that are tried in turn where the time is short.
const SHARES: [f64; 7] = [1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1];

/// Lengths of a study's trainings, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tune) struct Lengths {
    /// Tokens of a trial.
    pub(super) short: u64,
    /// Tokens of the recipe that is exported, or what stands in for it.
    pub(super) full: u64,
    /// Tokens that longer trainings may take together.
    allowance: u64,
    /// Tokens of the last trainings.
    pub(super) longest: u64,
    /// Number of trainings that are that long.
    pub(super) at_longest: u64,
    /// Tokens of the trainings before the last ones; `None` where there are tokens for all of them to be long, or too
    /// few for any but the last.
    pub(super) between: Option<u64>,
}

impl Lengths {
    /// The lengths of a study after these trials; `None` where it does not train longer: it trains at full length
    /// already, is too small, or says so.
    pub(in crate::tune) fn of(
        study: &Study,
        plan: &ConfirmPlan,
        history: &[Trial],
        trained: TrainedRows,
    ) -> Option<Self> {
        let trainings = by_training(study, history);
        let first = trainings.values().flatten().min_by_key(|trial| trial.number)?;
        Self::after(study, plan, &first.params, trainings.len() as u64, trained)
    }

    /// The lengths of a study after so many trainings, of which `params` are one; `None` where it does not train
    /// longer.
    pub(in crate::tune) fn after(
        study: &Study,
        plan: &ConfirmPlan,
        params: &Params,
        trainings: u64,
        trained: TrainedRows,
    ) -> Option<Self> {
        let (short, full) = short_and_full(study, params, trained)?;
        // What is tried behind the budget for the sake of longer trainings does not make them longer yet.
        let of_search = study.budget.trials.unwrap_or(u64::MAX).min(trainings);
        Self::allowed(study, plan, of_search, short, full)
    }

    /// The least number of trainings after which longer ones are made, where `made` are too few for that; `None` where
    /// no number is enough. `params` are those of one of them.
    pub(super) fn enough_trainings(
        study: &Study,
        plan: &ConfirmPlan,
        params: &Params,
        made: u64,
        trained: TrainedRows,
    ) -> Option<u64> {
        let (short, full) = short_and_full(study, params, trained)?;
        let are_enough = |trainings: &u64| Self::allowed(study, plan, *trainings, short, full).is_some();
        (made.saturating_add(1)..=MANY).find(are_enough)
    }

    /// The lengths that so many trainings of a search allow.
    fn allowed(study: &Study, plan: &ConfirmPlan, trainings: u64, short: u64, full: u64) -> Option<Self> {
        // A budget of time bounds them too, and is there to be used: where each training takes minutes, few are many.
        let allowance = match study.budget.time_s {
            Some(_) if trainings >= FIRST => (plan.longer * trainings as f64 * short as f64) as u64,
            _ => plan.longer_tokens(trainings, short),
        };
        let lengths = Self::planned(short, full, allowance);
        lengths.are_longer().then_some(lengths)
    }

    /// The lengths of trainings that may take so many tokens together.
    fn planned(short: u64, full: u64, allowance: u64) -> Self {
        let are_enough_for = |trainings: u64| allowance as f64 >= NEARLY * trainings as f64 * full as f64;
        let longest = if are_enough_for(THEN) { full } else { allowance / THEN };
        let at_longest = if are_enough_for(FIRST) { FIRST } else { THEN };
        let each = allowance.saturating_sub(THEN.saturating_mul(longest)) / FIRST;
        let between = (at_longest == THEN && each as f64 >= LONGER * short as f64).then_some(each);
        Self {
            short,
            full,
            allowance,
            longest,
            at_longest,
            between,
        }
    }

    fn are_longer(&self) -> bool {
        self.longest as f64 >= LONGER * self.short as f64 && self.short > 0
    }

    /// The lengths as far as so many seconds last beside the trainings that were made, of which `made` are the tokens.
    /// Trainings that have begun go on at their lengths where the time allows no longer ones. `seconds` tells those of
    /// a training of so many tokens.
    pub(in crate::tune) fn fitting(self, made: &[u64], seconds: &dyn Fn(u64) -> f64, left_s: f64) -> Option<Self> {
        if left_s.is_infinite() {
            return Some(self);
        }
        let tokens = self.allowance.min(FIRST.saturating_mul(self.full));
        let shorter = SHARES.map(|share| Self::planned(self.short, self.full, (share * tokens as f64) as u64));
        let fits = |one: &Self| one.left(made).into_iter().map(seconds).sum::<f64>() <= left_s.max(0.0);
        let fitting = shorter.into_iter().find(|one| one.are_longer() && fits(one));
        match self.begun(made) {
            Some(begun) if fitting.is_none_or(|fitting| fitting.longest < begun.longest) => Some(begun),
            _ => fitting,
        }
    }

    /// The lengths of the trainings that were made.
    fn begun(&self, made: &[u64]) -> Option<Self> {
        let longest = *made.iter().max()?;
        let at_longest = made.iter().filter(|tokens| **tokens == longest).count() as u64;
        Some(Self {
            longest,
            at_longest: at_longest.max(THEN),
            between: made.iter().filter(|tokens| **tokens < longest).max().copied(),
            ..*self
        })
    }

    /// Tokens of the longer trainings that are left where `made` are those of the finished ones.
    pub(in crate::tune) fn left(&self, made: &[u64]) -> Vec<u64> {
        let between = self.between.map(|tokens| (FIRST, tokens));
        let all = between.into_iter().chain([(self.at_longest, self.longest)]);
        all.flat_map(|(count, tokens)| {
            let done = made.iter().filter(|one| **one == tokens).count() as u64;
            (done..count).map(move |_| tokens)
        })
        .collect()
    }

    /// Whether the longest trainings are long enough for a lower learning rate to win.
    pub(super) fn favour_lower_rates(&self) -> bool {
        self.times(self.longest) >= LOWERS_RATE
    }

    /// Multiple of a trial's tokens that so many tokens are.
    pub(in crate::tune) fn times(&self, tokens: u64) -> f64 {
        tokens as f64 / self.short.max(1) as f64
    }

    /// Tokens of the last trainings.
    pub(in crate::tune) fn longest(&self) -> u64 {
        self.longest
    }
}

/// Tokens of a trial's training of these params and of the full one; `None` where trials do not train.
fn short_and_full(study: &Study, params: &Params, trained: TrainedRows) -> Option<(u64, u64)> {
    let train = study.plan.train.as_ref()?;
    let one = &recipe_for(study, params).ok()?;
    let tokens_of = |length: TrainingLength| length.tokens(&one.batch, trained);
    let short = tokens_of(train.length);
    let full = match (tokens_of(one.training.length), study.finds_length) {
        (stand_in, true) => stand_in.max(LEAST_TIMES.saturating_mul(short)),
        (full, false) => full,
    };
    Some((short, full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_into_length_first_and_into_breadth_where_there_are_more() {
        let of = |allowance: u64| {
            let lengths = Lengths::planned(30, 300, allowance);
            (lengths.longest, lengths.at_longest, lengths.between)
        };
        // A pair as long as it can be, all the way where that is nearly so.
        assert_eq!(of(100), (50, 2, None));
        assert_eq!(of(400), (200, 2, None));
        assert_eq!(of(500), (300, 2, None));
        assert_eq!(of(700), (300, 2, None));
        // Four of a length between, then a pair; and four all the way.
        assert_eq!(of(800), (300, 2, Some(50)));
        assert_eq!(of(1000), (300, 4, None));
    }

    #[test]
    fn trainings_are_as_long_as_the_time_lasts_and_those_that_began_go_on() {
        let planned = Lengths::planned(30, 300, 1000);
        // A token takes a second.
        let fitting = |made: &[u64], left_s: f64| {
            let found = planned.fitting(made, &|tokens| tokens as f64, left_s);
            found.map(|lengths| (lengths.longest, lengths.left(made).len()))
        };
        assert_eq!(fitting(&[], f64::INFINITY), Some((300, 4)));
        assert_eq!(fitting(&[], 1200.0), Some((300, 4)));
        assert_eq!(fitting(&[], 600.0), Some((300, 2)));
        assert_eq!(fitting(&[], 360.0), Some((175, 2)));
        assert_eq!((fitting(&[], 90.0), fitting(&[], -1.0)), (None, None));
        // What was made at shorter lengths counts, unless there is time to make all of it anew.
        assert_eq!(fitting(&[175], 10.0), Some((175, 1)));
        assert_eq!(fitting(&[175, 175], -1.0), Some((175, 0)));
        assert_eq!(fitting(&[175, 175], 1200.0), Some((300, 4)));
        assert_eq!(fitting(&[300, 300, 300, 300], 0.0), Some((300, 0)));
    }
}
