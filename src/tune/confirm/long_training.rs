//! Longer trainings of the finalists: whether what a short training chose holds for a long one.
//!
//! Short trainings flatter high learning rates: the longer the training, the lower the best one. So the recommended setting
//! and the same at half its rate are trained longer, as near to the length that the study's recipes will be trained for as
//! the tokens last. Only a length near that one tells: at 3 and 5 times the short length the higher rate still wins where it
//! loses at 10 (docs/benchmarks.md). Tokens that are left go to four trainings of a length between, the two best of which
//! then go on. What ends there is evidence of the losses at full length (`FullLength` of the search), by which is recommended.

use std::collections::BTreeMap;

use super::by_training;
use super::finalists::Finalists;
use crate::space::{Study, recipe_for};
use crate::store::LONGER_DIVERGED_STEP;
use peft_tune_core::objective::{FULL_TOKENS, LONGER_TOKENS, LOSS, LOSS_LONGER, THROUGHPUT};
use peft_tune_core::recipe::{EpochSteps, OptimizerKind, Precision, Recipe, RecipeKey, TrainingLength};
use peft_tune_core::space::{ConfirmPlan, SearchSpace};
use peft_tune_core::study::{Confirmed, Metrics, ParamValue, Params, Trial, TrialNumber, with_confirmed};
use peft_tune_search::{FoundLength, LOSS_BY_CHANCE, LossRise, varied};

/// Trainings of a length between, where there are tokens for them, and how many go on to the longest.
const FIRST: u64 = 4;
const THEN: u64 = 2;
/// Share of the full length above which a training goes all the way, though it takes a little more than the tokens that there are.
const NEARLY: f64 = 0.8;
/// Multiple of a trial's tokens from which on a training counts as longer.
const LONGER: f64 = 1.5;
/// Least length of the longest training where the search is to find how long the full one should be, in trainings of a
/// trial, however short an epoch is.
const LEAST_TIMES: u64 = 3;
/// Share of another learning rate that is about half of it.
const ABOUT_HALF: std::ops::Range<f64> = 0.35..0.65;
/// Names of parameters.
const LEARNING_RATE: &str = "learning_rate";
const PRECISION: &str = "precision";
/// Share by which a precision has to be expected to be faster, to be tried for the sake of the longer trainings.
const FASTER: f64 = 0.05;
/// Share by which the short loss of another optimizer may be above the recommended one's, for a longer training.
const NEAR_ENOUGH: f64 = 0.25;
/// Trainings beside the planned ones that may be made longest, so that what is recommended in the end is one of them.
const BEHIND: u64 = 2;

/// Shares of the tokens of longer trainings that are tried in turn where the time is short.
const SHARES: [f64; 7] = [1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1];

/// Lengths of a study's trainings, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tune) struct Lengths {
    /// Tokens of a trial.
    short: u64,
    /// Tokens of the recipe that is exported, or what stands in for it.
    full: u64,
    /// Tokens that longer trainings may take together.
    allowance: u64,
    /// Tokens of the last trainings.
    longest: u64,
    /// Number of trainings that are that long.
    at_longest: u64,
    /// Tokens of the trainings before the last ones; `None` where there are tokens for all of them to be long, or too
    /// few for any but the last.
    between: Option<u64>,
}

impl Lengths {
    /// The lengths of a study after these trials; `None` where it does not train longer: it trains at full length
    /// already, is too small, or says so. `trained` are the rows and tokens of one pass through the data.
    pub(in crate::tune) fn of(
        study: &Study,
        plan: &ConfirmPlan,
        history: &[Trial],
        trained: (u64, u64),
    ) -> Option<Self> {
        let trainings = by_training(study, history);
        let first = trainings.values().flatten().min_by_key(|trial| trial.number)?;
        Self::after(study, plan, (&first.params, trainings.len() as u64), trained)
    }

    /// The lengths of a study after so many trainings, of which `params` are one; `None` where it does not train
    /// longer.
    pub(in crate::tune) fn after(
        study: &Study,
        plan: &ConfirmPlan,
        (params, trainings): (&Params, u64),
        trained: (u64, u64),
    ) -> Option<Self> {
        let train = study.plan.train.as_ref()?;
        let one = &recipe_for(study, params).ok()?;
        let short = tokens_of(train.length, one, trained);
        let full = match (tokens_of(one.training.length, one, trained), study.finds_length) {
            (stand_in, true) => stand_in.max(LEAST_TIMES.saturating_mul(short)),
            (full, false) => full,
        };
        // What is tried behind the budget for the sake of longer trainings does not make them longer yet.
        let of_search = study.budget.trials.unwrap_or(u64::MAX).min(trainings);
        let lengths = Self::planned(short, full, plan.longer_tokens(of_search, short));
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

    /// Multiple of a trial's tokens that so many tokens are.
    pub(in crate::tune) fn times(&self, tokens: u64) -> f64 {
        tokens as f64 / self.short.max(1) as f64
    }

    /// Tokens of the last trainings.
    pub(in crate::tune) fn longest(&self) -> u64 {
        self.longest
    }
}

/// Tokens of a training of this length.
fn tokens_of(length: TrainingLength, recipe: &Recipe, (rows, tokens): (u64, u64)) -> u64 {
    let of_epoch = EpochSteps::new(rows, &recipe.batch);
    let steps = match length {
        TrainingLength::Tokens(tokens) => return tokens,
        TrainingLength::Epochs(epochs) => of_epoch.of_epochs(epochs),
        TrainingLength::Steps(steps) => steps,
    };
    (of_epoch.epochs_of(steps) * tokens as f64) as u64
}

/// Trials that train the same.
#[derive(Clone, Debug)]
struct Training {
    trials: Vec<TrialNumber>,
    params: Params,
    loss: f64,
    /// The best throughput of the trials, where it is known, in tokens per second.
    throughput: Option<f64>,
    /// Held-out losses by tokens of the longer trainings.
    longer: BTreeMap<u64, f64>,
    /// Losses that rose before the end, by tokens of the longer trainings.
    rises: BTreeMap<u64, LossRise>,
    /// Steps at which longer trainings diverged, by their tokens: their loss stands for one that they never had.
    diverged: BTreeMap<u64, f64>,
}

impl Training {
    /// Trials that train the same; `None` where their loss is not known.
    fn of(alike: &[&Trial], runs: &BTreeMap<TrialNumber, Vec<Metrics>>) -> Option<Self> {
        let known = alike
            .iter()
            .filter_map(|trial| Some((*trial, trial.state.metrics()?.value(LOSS)?)));
        let known: Vec<(&Trial, f64)> = known.collect();
        let (first, loss) = *known.first()?;
        let trials: Vec<TrialNumber> = known.iter().map(|(trial, _)| trial.number).collect();
        let throughputs = known
            .iter()
            .filter_map(|(trial, _)| trial.state.metrics()?.value(THROUGHPUT));
        let of_trials = trials.iter().filter_map(|number| runs.get(number)).flatten();
        let longer =
            of_trials.filter_map(|run| Some((run.value(LONGER_TOKENS)? as u64, (run.value(LOSS_LONGER)?, run))));
        let longer: BTreeMap<u64, (f64, &Metrics)> = longer.collect();
        let rises = longer
            .iter()
            .map(|(tokens, (_, run))| (*tokens, LossRise::in_metrics(run)));
        let diverged = longer
            .iter()
            .filter_map(|(tokens, (_, run))| Some((*tokens, run.value(LONGER_DIVERGED_STEP)?)));
        Some(Self {
            params: first.params.clone(),
            loss,
            throughput: throughputs.max_by(f64::total_cmp),
            rises: rises.filter_map(|(tokens, rise)| Some((tokens, rise?))).collect(),
            diverged: diverged.collect(),
            longer: longer.into_iter().map(|(tokens, (loss, _))| (tokens, loss)).collect(),
            trials,
        })
    }
}

/// The trainings of a study, the one with the least loss first.
pub(in crate::tune) struct LongTrainings<'a> {
    study: &'a Study,
    /// Space with the ranges as wide as they are by now.
    space: &'a SearchSpace,
    lengths: Lengths,
    trainings: Vec<Training>,
}

impl<'a> LongTrainings<'a> {
    pub(in crate::tune) fn new(
        study: &'a Study,
        lengths: Lengths,
        finalists: &Finalists<'a>,
        runs: &BTreeMap<TrialNumber, Vec<Metrics>>,
    ) -> Self {
        let counted = with_confirmed(finalists.history, finalists.confirmations);
        let trainings = by_training(study, &counted).into_values();
        let mut trainings: Vec<Training> = trainings.filter_map(|alike| Training::of(&alike, runs)).collect();
        trainings.sort_by(|a, b| a.loss.total_cmp(&b.loss));
        Self {
            study,
            space: &finalists.problem.space,
            lengths,
            trainings,
        }
    }

    /// A setting that is the same as a finalist's in a faster precision, as far as the space has one. `expected` is the
    /// throughput of a setting. It comes before any longer training: what is costlier and no better is not trained
    /// longer.
    pub(in crate::tune) fn faster_precision(
        &self,
        recommended: TrialNumber,
        is_tried: &dyn Fn(&Params) -> bool,
        expected: &dyn Fn(&Params) -> Option<f64>,
    ) -> Option<Params> {
        self.leaders_as_found(recommended).into_iter().find_map(|leader| {
            let own = expected(&leader.params)?;
            let others = varied(self.space, &leader.params, &|one| one.name == PRECISION);
            let speeds = others
                .into_iter()
                .filter_map(|params| Some((expected(&params)?, params)));
            let (speed, params) = speeds.max_by(|a, b| a.0.total_cmp(&b.0))?;
            (speed > own * (1.0 + FASTER) && !is_tried(&params)).then_some(params)
        })
    }

    /// A setting that is the same as a finalist's at half its learning rate, as far as the space has one and no trial
    /// does.
    pub(in crate::tune) fn lower_rate(&self, recommended: TrialNumber) -> Option<Params> {
        let leaders = self.leaders(recommended).into_iter();
        let at_once = match self.lengths.between {
            Some(_) => FIRST,
            None => self.lengths.at_longest,
        };
        leaders
            .take((at_once as usize / 2).max(1))
            .filter(|leader| self.at_half(leader).is_none())
            .find_map(|leader| {
                let rate = leader.params.get(LEARNING_RATE)?.as_f64()?;
                let mut parameters = self.space.parameters.iter();
                let parameter = parameters.find(|parameter| parameter.name == LEARNING_RATE)?;
                let half = parameter.distribution.nearest(&ParamValue::Float(rate / 2.0))?;
                if !ABOUT_HALF.contains(&(half.as_f64()? / rate)) {
                    return None;
                }
                let mut params = leader.params.clone();
                params.insert(LEARNING_RATE.to_owned(), half);
                Some(params)
            })
    }

    /// The trial to train longer next, and for how many tokens. What diverged is trained at no other length.
    pub(in crate::tune) fn next(
        &self,
        recommended: TrialNumber,
        given_up: &[TrialNumber],
    ) -> Option<(TrialNumber, u64)> {
        let open = |training: &&Training, tokens: u64| {
            let gave_up = training.trials.iter().any(|number| given_up.contains(number));
            !training.longer.contains_key(&tokens) && training.diverged.is_empty() && !gave_up
        };
        let longest = self.lengths.longest;
        let candidates = match self.lengths.between {
            None => self.candidates(recommended, longest, self.lengths.at_longest),
            Some(between) => {
                let mut candidates = self.candidates(recommended, between, FIRST);
                if candidates.len() < 2 {
                    return None;
                }
                if let Some(training) = candidates.iter().find(|training| open(training, between)) {
                    return Some((*training.trials.first()?, between));
                }
                candidates.retain(|training| training.longer.contains_key(&between));
                candidates.sort_by(|a, b| a.longer[&between].total_cmp(&b.longer[&between]));
                candidates.truncate(THEN as usize);
                candidates
            }
        };
        // One alone has nothing to be compared with.
        if candidates.len() < 2 {
            return None;
        }
        let made = self.trainings.iter().filter(|one| one.longer.contains_key(&longest));
        let may_follow = (made.count() as u64) < self.lengths.at_longest + BEHIND;
        let last = self.of_trial(recommended).filter(|_| may_follow);
        // Where two optimizers were compared first, the better one's half comes behind.
        let beside = last.filter(|_| self.are_rivals(&self.leaders(recommended)));
        let half = beside.and_then(|last| self.at_half(last));
        let training = candidates
            .into_iter()
            .chain(last)
            .chain(half)
            .find(|training| open(training, longest))?;
        Some((*training.trials.first()?, longest))
    }

    /// The trainings to make so long, at most so many: those that were made, the recommended one, and the same at half
    /// its rate first.
    fn candidates(&self, recommended: TrialNumber, tokens: u64, most: u64) -> Vec<&Training> {
        let begun = self
            .trainings
            .iter()
            .filter(|training| training.longer.contains_key(&tokens));
        let mut candidates: Vec<&Training> = begun.collect();
        let leaders = self.leaders(recommended);
        // Two optimizers differ more at the full length than two rates do.
        let first = if self.are_rivals(&leaders) { 2 } else { 1 };
        let mut ordered: Vec<&Training> = leaders.iter().take(first).copied().collect();
        ordered.extend(leaders.first().and_then(|leader| self.at_half(leader)));
        ordered.extend(&leaders);
        ordered.extend(leaders.iter().filter_map(|leader| self.at_half(leader)));
        for training in ordered {
            if (candidates.len() as u64) < most && !candidates.iter().any(|one| one.trials == training.trials) {
                candidates.push(training);
            }
        }
        candidates
    }

    /// The length that the full training should have, by the trainings of this trial's setting; by those of the best
    /// longest one where it was made at one length only. What diverged says nothing of it. `None` where that says too
    /// little.
    pub(in crate::tune) fn found_length(&self, recommended: TrialNumber, epoch_tokens: f64) -> Option<FoundLength> {
        let is_sound = |training: &&Training| training.diverged.is_empty();
        let own = self
            .of_trial(recommended)
            .filter(|training| !training.longer.is_empty() && is_sound(training));
        let longest = self.trainings.iter().filter(is_sound).filter_map(|training| {
            let (tokens, loss) = training.longer.last_key_value()?;
            Some((training, *tokens, *loss))
        });
        let best = longest.min_by(|a, b| b.1.cmp(&a.1).then(a.2.total_cmp(&b.2)));
        let training = own.or(best.map(|(training, ..)| training))?;
        let short = (self.lengths.short as f64, training.loss);
        let longer = training.longer.iter().map(|(tokens, loss)| (*tokens as f64, *loss));
        let rise = training
            .longer
            .keys()
            .next_back()
            .and_then(|tokens| training.rises.get(tokens));
        let trained: Vec<(f64, f64)> = std::iter::once(short).chain(longer).collect();
        FoundLength::new(&trained, epoch_tokens, rise.copied())
    }

    /// Values that the longest training of each setting gives to all trials that would train the same, with the full
    /// length that was found.
    pub(in crate::tune) fn confirmed(
        &self,
        found: Option<&FoundLength>,
    ) -> BTreeMap<TrialNumber, BTreeMap<String, Confirmed>> {
        let once = |value: f64| Confirmed {
            value,
            interval: 1.0,
            repeats: 1,
        };
        let longest = self.trainings.iter().filter_map(|training| {
            let (tokens, loss) = training.longer.last_key_value()?;
            let diverged = training.diverged.get(tokens).map(|step| (LONGER_DIVERGED_STEP, *step));
            Some((training, (*tokens as f64, *loss), diverged))
        });
        let full = self.lengths.full as f64;
        let said = longest.flat_map(|(training, (tokens, loss), diverged)| {
            let trials = training.trials.iter();
            trials.map(move |number| {
                let known = [(LOSS_LONGER, loss), (LONGER_TOKENS, tokens), (FULL_TOKENS, full)];
                let known = known
                    .into_iter()
                    .chain(diverged)
                    .chain(found.into_iter().flat_map(FoundLength::metrics));
                (
                    *number,
                    known.map(|(metric, value)| (metric.to_owned(), once(value))).collect(),
                )
            })
        });
        said.collect()
    }

    fn of_trial(&self, number: TrialNumber) -> Option<&Training> {
        self.trainings.iter().find(|training| training.trials.contains(&number))
    }

    /// The recommended training and the one with the least loss, each in the fastest precision that hardly changes its loss.
    fn leaders(&self, recommended: TrialNumber) -> Vec<&Training> {
        let mut leaders: Vec<&Training> = Vec::new();
        for leader in self.leaders_as_found(recommended) {
            let fastest = self.in_fastest_precision(leader);
            if !leaders.iter().any(|one| one.trials == fastest.trials) {
                leaders.push(fastest);
            }
        }
        leaders
    }

    /// The training with the same settings in another precision where that is faster and its loss nearly as good; else the one given.
    fn in_fastest_precision<'b>(&'b self, training: &'b Training) -> &'b Training {
        let key = |one: &Training| self.key_but_for(one, |recipe| recipe.precision = Precision::default());
        let own = key(training);
        let is_as_good = |one: &&Training| one.loss <= training.loss * (1.0 + LOSS_BY_CHANCE) && key(one) == own;
        let speed = |one: &&Training| one.throughput.unwrap_or(0.0);
        let alike = self.trainings.iter().filter(is_as_good);
        alike.max_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap_or(training)
    }

    /// The recommended training and the best of another optimizer, or where none is near it, the best with other settings than
    /// another learning rate or precision. Optimizers learn at different speeds: the one that leads after a short training may be far
    /// behind after a long one.
    fn leaders_as_found(&self, recommended: TrialNumber) -> Vec<&Training> {
        let Some(first) = self.of_trial(recommended) else {
            return Vec::new();
        };
        let kind = |training: &Training| {
            self.key_but_for(training, |recipe| {
                recipe.optimizer.learning_rate = 1.0;
                recipe.precision = Precision::default();
            })
        };
        let own = kind(first);
        let by_other = |training: &&Training| {
            training.loss <= first.loss * (1.0 + NEAR_ENOUGH) && self.optimizer(training) != self.optimizer(first)
        };
        let second = self.trainings.iter().find(by_other);
        let second = second.or_else(|| self.trainings.iter().find(|training| kind(training) != own));
        [Some(first), second].into_iter().flatten().collect()
    }

    /// A training that differs from another in nothing but about half the learning rate.
    fn at_half(&self, training: &Training) -> Option<&Training> {
        let rate = training.params.get(LEARNING_RATE)?.as_f64()?;
        let distance = |other: &&Training| {
            let other = other
                .params
                .get(LEARNING_RATE)
                .and_then(ParamValue::as_f64)
                .unwrap_or(f64::NAN);
            (other / rate / 0.5).ln().abs()
        };
        let others = self.trainings.iter().filter(|other| {
            let other_rate = other.params.get(LEARNING_RATE).and_then(ParamValue::as_f64);
            other_rate.is_some_and(|other| ABOUT_HALF.contains(&(other / rate)))
                && self.without_rate(other) == self.without_rate(training)
        });
        others.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    fn are_rivals(&self, leaders: &[&Training]) -> bool {
        matches!(leaders, [first, second] if self.optimizer(first) != self.optimizer(second))
    }

    fn optimizer(&self, training: &Training) -> Option<OptimizerKind> {
        Some(recipe_for(self.study, &training.params).ok()?.optimizer.kind)
    }

    /// Key of all that decides the loss but the learning rate.
    fn without_rate(&self, training: &Training) -> Option<RecipeKey> {
        self.key_but_for(training, |recipe| recipe.optimizer.learning_rate = 1.0)
    }

    /// Key of all that decides the loss but for what `level` sets alike in all recipes.
    fn key_but_for(&self, training: &Training, level: impl FnOnce(&mut Recipe)) -> Option<RecipeKey> {
        let mut recipe = recipe_for(self.study, &training.params).ok()?;
        level(&mut recipe);
        Some(recipe.loss_key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_compared_in_the_tokens_of_their_steps() {
        let mut recipe = Recipe::new("m", peft_tune_core::recipe::DataSettings::default());
        (recipe.batch.micro_batch, recipe.batch.gradient_accumulation) = (4, 1);
        // Ten rows of 100 tokens are steps of 4, 4 and 2 rows.
        let of = |length| tokens_of(length, &recipe, (10, 1000));
        let counts = [
            TrainingLength::Steps(2),
            TrainingLength::Steps(6),
            TrainingLength::Epochs(2.0),
        ]
        .map(of);
        assert_eq!(counts, [800, 2000, 2000]);
        assert_eq!(
            (of(TrainingLength::Epochs(0.3)), of(TrainingLength::Tokens(7))),
            (400, 7)
        );
        recipe.batch.micro_batch = 64;
        assert_eq!(tokens_of(TrainingLength::Steps(3), &recipe, (10, 1000)), 3000);
    }

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
