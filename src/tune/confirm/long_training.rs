//! Longer trainings of the finalists: whether what a short training chose holds for a long one.
//!
//! Short trainings flatter high learning rates: the longer the training, the lower the best one. So the recommended setting
//! and the same at half its rate are trained longer, as near to the length that the study's recipes will be trained for as
//! the tokens last. Only a length near that one tells: at 3 and 5 times the short length the higher rate still wins where it
//! loses at 10 (docs/benchmarks.md). Tokens that are left go to four trainings of a length between, the two best of which
//! then go on, or to more trainings of the full length, the next best short losses first. What ends there is evidence of the
//! losses at full length (`FullLength` of the search), by which is recommended.

use std::collections::BTreeMap;

use super::finalists::Finalists;
use super::lengths::{FIRST, Lengths, THEN};
use super::trainings::by_training;
use crate::space::{Study, recipe_for};
use crate::store::LONGER_DIVERGED_STEP;
use peft_tune_core::objective::{FULL_TOKENS, LONGER_TOKENS, LOSS, LOSS_LONGER, THROUGHPUT};
use peft_tune_core::recipe::{OptimizerKind, Precision, Recipe, RecipeKey};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{
    Confirmations, Confirmed, Metrics, ParamValue, Params, Trial, TrialNumber, with_confirmed,
};
use peft_tune_search::{FoundLength, LOSS_BY_CHANCE, LossRise, varied};

/// Share of another learning rate that is about half of it.
const ABOUT_HALF: std::ops::Range<f64> = 0.35..0.65;
/// Names of parameters.
const LEARNING_RATE: &str = "learning_rate";
const PRECISION: &str = "precision";
/// Share by which a precision has to be expected to be faster, to be tried for the sake of the longer trainings.
const FASTER: f64 = 0.05;
/// Share by which another short loss may be above the recommended one's, for a longer training.
const NEAR_ENOUGH: f64 = 0.25;
/// Trainings beside the planned ones that may be made longest, so that what is recommended in the end is one of them.
const BEHIND: u64 = 2;

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

    /// Whether the short loss is near enough to a leader's for a longer training.
    fn is_near(&self, leader: &Self) -> bool {
        self.loss <= leader.loss * (1.0 + NEAR_ENOUGH)
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

    /// A setting that is the same as a finalist's at half its learning rate, as far as trainings are long enough for it, the space
    /// has one and no trial does.
    pub(in crate::tune) fn lower_rate(&self, recommended: TrialNumber) -> Option<Params> {
        if !self.lengths.favour_lower_rates() {
            return None;
        }
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
                Some(leader.params.with(LEARNING_RATE, half))
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
    /// its rate first; those with the least losses of short trainings behind the leaders.
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
        if let Some(leader) = leaders.first() {
            let others = self.trainings.iter().filter(|other| other.is_near(leader));
            ordered.extend(others.map(|other| self.in_fastest_precision(other)));
        }
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
    pub(in crate::tune) fn confirmed(&self, found: Option<&FoundLength>) -> Confirmations {
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
    /// behind after a long one. States of 8 bits make no other optimizer.
    fn leaders_as_found(&self, recommended: TrialNumber) -> Vec<&Training> {
        let Some(first) = self.of_trial(recommended) else {
            return Vec::new();
        };
        let kind = |training: &Training| {
            self.key_but_for(training, |recipe| {
                recipe.optimizer.learning_rate = 1.0;
                recipe.optimizer.kind = recipe.optimizer.kind.rule();
                recipe.precision = Precision::default();
            })
        };
        let own = kind(first);
        let by_other =
            |training: &&Training| training.is_near(first) && self.optimizer(training) != self.optimizer(first);
        let second = self.trainings.iter().find(by_other);
        let second = second.or_else(|| self.trainings.iter().find(|training| kind(training) != own));
        [Some(first), second].into_iter().flatten().collect()
    }

    /// A training that differs from another in nothing but about half the learning rate, where trainings are long enough for it.
    fn at_half(&self, training: &Training) -> Option<&Training> {
        if !self.lengths.favour_lower_rates() {
            return None;
        }
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

    /// The optimizer's arithmetic, whatever its states are kept in.
    fn optimizer(&self, training: &Training) -> Option<OptimizerKind> {
        Some(recipe_for(self.study, &training.params).ok()?.optimizer.kind.rule())
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
