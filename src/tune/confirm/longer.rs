//! Whether what a short training chose holds for a longer one.
//!
//! Short trainings flatter high learning rates: the longer the training, the lower the best one. So the finalists, and the
//! same at half their rate, are trained longer, towards the length that the study's recipes will be trained for. Half of
//! the tokens go to four of them, the other half to the two that are then best. What ends there is compared among those
//! that were trained as long.

use std::collections::BTreeMap;

use super::by_training;
use super::finalists::Finalists;
use crate::space::{Study, recipe_for};
use peft_tune_core::objective::{LONGER_TOKENS, LOSS, LOSS_LONGER};
use peft_tune_core::recipe::{Recipe, RecipeKey, TrainingLength};
use peft_tune_core::space::ConfirmPlan;
use peft_tune_core::study::{Confirmed, Metrics, ParamValue, Params, Trial, TrialNumber, with_confirmed};

/// Trainings that are made longer first, and how many of them then go on.
const FIRST: u64 = 4;
const THEN: u64 = 2;
/// A training is longer where it is that many times as long.
const LONGER: f64 = 1.5;
/// A learning rate is about half of another where it is so many times that.
const ABOUT_HALF: std::ops::Range<f64> = 0.35..0.65;
/// Name of the parameter.
const LEARNING_RATE: &str = "learning_rate";

/// How long the trainings of a study are, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tune) struct Lengths {
    /// Of a trial.
    short: u64,
    /// Of the recipe that is exported.
    full: u64,
    /// That longer trainings may take together.
    allowance: u64,
}

impl Lengths {
    /// `None` where the study does not train longer: it trains at full length already, is too small, or says so. `trained`
    /// are the rows and tokens of one pass through the data.
    pub(in crate::tune) fn of(
        study: &Study,
        plan: &ConfirmPlan,
        history: &[Trial],
        trained: (u64, u64),
    ) -> Option<Self> {
        let train = study.plan.train.as_ref()?;
        let trainings = by_training(study, history);
        let first = trainings.values().flatten().min_by_key(|trial| trial.number)?;
        let one = &recipe_for(study, &first.params).ok()?;
        let short = tokens_of(train.length, one, trained);
        let full = tokens_of(one.training.length, one, trained);
        let allowance = plan.longer_tokens(trainings.len() as u64, short);
        let lengths = Self { short, full, allowance };
        (lengths.first() as f64 >= LONGER * short as f64 && short > 0).then_some(lengths)
    }

    fn first(&self) -> u64 {
        self.full.min(self.allowance / 2 / FIRST)
    }

    fn then(&self) -> Option<u64> {
        let then = self.full.min(self.allowance / 2 / THEN);
        (then as f64 >= LONGER * self.first() as f64).then_some(then)
    }
}

/// Tokens of a training of this length.
fn tokens_of(length: TrainingLength, recipe: &Recipe, (rows, tokens): (u64, u64)) -> u64 {
    match length {
        TrainingLength::Tokens(tokens) => tokens,
        TrainingLength::Epochs(epochs) => (epochs * tokens as f64) as u64,
        TrainingLength::Steps(steps) => {
            let a_row = tokens as f64 / rows.max(1) as f64;
            (steps as f64 * recipe.batch.global_batch() as f64 * a_row) as u64
        }
    }
}

/// Trials that train the same.
#[derive(Clone, Debug)]
struct Training {
    trials: Vec<TrialNumber>,
    params: Params,
    loss: f64,
    /// Held-out losses by tokens of the longer trainings.
    longer: BTreeMap<u64, f64>,
}

impl Training {
    /// `None` where the loss of these trials is not known.
    fn of(alike: &[&Trial], runs: &BTreeMap<TrialNumber, Vec<Metrics>>) -> Option<Self> {
        let known = alike
            .iter()
            .filter_map(|trial| Some((*trial, trial.state.metrics()?.value(LOSS)?)));
        let known: Vec<(&Trial, f64)> = known.collect();
        let (first, loss) = *known.first()?;
        let trials: Vec<TrialNumber> = known.iter().map(|(trial, _)| trial.number).collect();
        let of_trials = trials.iter().filter_map(|number| runs.get(number)).flatten();
        let longer = of_trials.filter_map(|run| Some((run.value(LONGER_TOKENS)? as u64, run.value(LOSS_LONGER)?)));
        Some(Self {
            params: first.params.clone(),
            loss,
            longer: longer.collect(),
            trials,
        })
    }
}

/// The trainings of a study, the one with the least loss first.
pub(in crate::tune) struct LongerRuns<'a> {
    study: &'a Study,
    lengths: Lengths,
    trainings: Vec<Training>,
}

impl<'a> LongerRuns<'a> {
    pub(in crate::tune) fn new(
        study: &'a Study,
        lengths: Lengths,
        finalists: &Finalists<'_>,
        runs: &BTreeMap<TrialNumber, Vec<Metrics>>,
    ) -> Self {
        let counted = with_confirmed(finalists.history, finalists.confirmations);
        let trainings = by_training(study, &counted).into_values();
        let mut trainings: Vec<Training> = trainings.filter_map(|alike| Training::of(&alike, runs)).collect();
        trainings.sort_by(|a, b| a.loss.total_cmp(&b.loss));
        Self {
            study,
            lengths,
            trainings,
        }
    }

    /// The settings that are the same as a finalist's at half its learning rate, as far as the space has them and no trial does.
    pub(in crate::tune) fn lower_rate(&self, recommended: TrialNumber) -> Option<Params> {
        let leaders = self.leaders(recommended).into_iter();
        leaders
            .filter(|leader| self.at_half(leader).is_none())
            .find_map(|leader| {
                let rate = leader.params.get(LEARNING_RATE)?.as_f64()?;
                let parameters = &self.study.space.parameters;
                let parameter = parameters.iter().find(|parameter| parameter.name == LEARNING_RATE)?;
                let half = parameter.distribution.nearest(&ParamValue::Float(rate / 2.0))?;
                if !ABOUT_HALF.contains(&(half.as_f64()? / rate)) {
                    return None;
                }
                let mut params = leader.params.clone();
                params.insert(LEARNING_RATE.to_owned(), half);
                Some(params)
            })
    }

    /// The trial to train longer next, and for how many tokens.
    pub(in crate::tune) fn next(
        &self,
        recommended: TrialNumber,
        given_up: &[TrialNumber],
    ) -> Option<(TrialNumber, u64)> {
        let first = self.lengths.first();
        let open = |training: &&Training, tokens: u64| {
            let gave_up = training.trials.iter().any(|number| given_up.contains(number));
            !training.longer.contains_key(&tokens) && !gave_up
        };
        let begun = self
            .trainings
            .iter()
            .filter(|training| training.longer.contains_key(&first));
        let mut candidates: Vec<&Training> = begun.collect();
        for leader in self.leaders(recommended) {
            for training in [Some(leader), self.at_half(leader)].into_iter().flatten() {
                if candidates.len() < FIRST as usize && !candidates.iter().any(|one| one.trials == training.trials) {
                    candidates.push(training);
                }
            }
        }
        // One alone has nothing to be compared with.
        if candidates.len() < 2 {
            return None;
        }
        if let Some(training) = candidates.iter().find(|training| open(training, first)) {
            return Some((*training.trials.first()?, first));
        }
        let then = self.lengths.then()?;
        candidates.retain(|training| training.longer.contains_key(&first));
        candidates.sort_by(|a, b| a.longer[&first].total_cmp(&b.longer[&first]));
        candidates.truncate(THEN as usize);
        let training = candidates.into_iter().find(|training| open(training, then))?;
        Some((*training.trials.first()?, then))
    }

    /// What the longest training of each setting says of all trials that would train the same.
    pub(in crate::tune) fn confirmed(&self) -> BTreeMap<TrialNumber, BTreeMap<String, Confirmed>> {
        let once = |value: f64| Confirmed {
            value,
            interval: 1.0,
            repeats: 1,
        };
        let longest = self.trainings.iter().filter_map(|training| {
            let (tokens, loss) = training.longer.last_key_value()?;
            Some((training, *tokens as f64, *loss))
        });
        let said = longest.flat_map(|(training, tokens, loss)| {
            let trials = training.trials.iter();
            trials.map(move |number| {
                let known = [(LOSS_LONGER, loss), (LONGER_TOKENS, tokens)];
                let known = known.map(|(metric, value)| (metric.to_owned(), once(value)));
                (*number, known.into())
            })
        });
        said.collect()
    }

    /// The recommended training and the one with the least loss; where they are one, the best with other settings than another
    /// learning rate.
    fn leaders(&self, recommended: TrialNumber) -> Vec<&Training> {
        let of_recommended = self
            .trainings
            .iter()
            .find(|training| training.trials.contains(&recommended));
        let Some(first) = of_recommended else { return Vec::new() };
        let is_other = |training: &&Training| self.without_rate(training) != self.without_rate(first);
        let least = self
            .trainings
            .first()
            .filter(|training| training.trials != first.trials);
        let second = least.or_else(|| self.trainings.iter().find(is_other));
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

    /// What decides the loss beside the learning rate.
    fn without_rate(&self, training: &Training) -> Option<RecipeKey> {
        let mut recipe = recipe_for(self.study, &training.params).ok()?;
        recipe.optimizer.learning_rate = 1.0;
        Some(recipe.loss_key())
    }
}
