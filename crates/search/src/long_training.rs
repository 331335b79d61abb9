//! Trials by the loss that is expected of them at the full length, where some trainings were made longer: what is best after
//! a short training need not be after a long one.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::found_length::FoundLength;
use super::length::{FullLength, LEARNING_RATE, Trained};
use super::reason::{grouped, rate_text};
use super::recommend::NEAR_BEST_LOSS;
use peft_tune_core::objective::{FULL_TOKENS, LONGER_TOKENS, LOSS, LOSS_LONGER, TRAIN_TOKENS};
use peft_tune_core::study::{Metrics, Params, Trial, TrialNumber, TrialState};

/// Trainings that are evidence: those made longer, and of the others those with the least losses. Trials of the rest, however many,
/// are too far from the best to become it.
const MOST_TRAININGS: usize = 60;
/// A learning rate is said to be another than the best where it is that many times as high, or as low.
const ANOTHER_RATE: f64 = 1.25;

/// Evidence of a study's trainings on the loss at the full length.
pub(crate) struct LongTrainings {
    /// The complete trials, with the loss that is expected of them.
    pub(crate) trials: Vec<Trial>,
    model: FullLength,
    /// Setting that each trial trains: the setting of the first that trains the same, without what changes no loss.
    settings: BTreeMap<TrialNumber, Params>,
    /// The full length.
    tokens: f64,
    /// Different losses of longer trainings.
    longer: usize,
    /// The full length where the search found it.
    found: Option<FoundLength>,
}

/// Trials of one loss: they train the same.
struct Training<'a> {
    trials: Vec<(&'a Trial, &'a Metrics)>,
    loss: f64,
    /// Tokens and loss of the longest.
    longer: Option<(f64, f64)>,
}

impl LongTrainings {
    /// The evidence in a history; `None` where fewer than two longer trainings can be compared, or the tokens of the
    /// short ones are not known.
    pub(crate) fn of(history: &[Trial]) -> Option<Self> {
        let mut trainings = trainings(history);
        trainings.sort_by(|a, b| {
            (a.longer.is_none(), a.loss)
                .partial_cmp(&(b.longer.is_none(), b.loss))
                .unwrap_or(Ordering::Equal)
        });
        trainings.truncate(MOST_TRAININGS);
        let longer: BTreeSet<u64> = trainings
            .iter()
            .filter_map(|one| Some(one.longer?.1.to_bits()))
            .collect();
        if longer.len() < 2 {
            return None;
        }
        let metrics = || {
            trainings
                .iter()
                .flat_map(|one| &one.trials)
                .map(|(_, metrics)| *metrics)
        };
        let most = |name: &str| {
            metrics()
                .filter_map(|metrics| metrics.value(name))
                .max_by(f64::total_cmp)
        };
        let short = most(TRAIN_TOKENS)?;
        let tokens = most(FULL_TOKENS).or_else(|| most(LONGER_TOKENS))?;
        let free = free_parameters(&trainings);
        let mut settings = BTreeMap::new();
        for one in &trainings {
            let Some((first, _)) = one.trials.first() else { continue };
            let setting = without(&first.params, &free);
            settings.extend(one.trials.iter().map(|(trial, _)| (trial.number, setting.clone())));
        }
        let trained = trainings.iter().flat_map(|one| {
            let params = one.trials.first().and_then(|(trial, _)| settings.get(&trial.number));
            let own = one.trials.iter().find_map(|(_, metrics)| metrics.value(TRAIN_TOKENS));
            let lengths = [Some((own.unwrap_or(short), one.loss)), one.longer]
                .into_iter()
                .flatten();
            let known = move |(tokens, loss)| {
                Some(Trained {
                    params: params?,
                    tokens,
                    loss,
                })
            };
            lengths.filter_map(known)
        });
        let model = FullLength::of(&trained.collect::<Vec<_>>(), tokens)?;
        let complete: Vec<(&Trial, &Metrics)> = trainings.iter().flat_map(|one| one.trials.iter().copied()).collect();
        let of_trials: Option<Vec<&Params>> = complete.iter().map(|(trial, _)| settings.get(&trial.number)).collect();
        let losses = model.prudent_losses(&of_trials?);
        let expected = complete.into_iter().zip(losses).filter_map(|((trial, metrics), loss)| {
            let mut metrics = metrics.clone();
            metrics.retain(|name| name != LOSS_LONGER);
            metrics.insert(LOSS, loss?);
            Some(Trial {
                state: TrialState::Complete { metrics },
                ..trial.clone()
            })
        });
        let mut trials: Vec<Trial> = expected.collect();
        trials.sort_by_key(|trial| trial.number);
        Some(Self {
            trials,
            model,
            settings,
            tokens,
            longer: longer.len(),
            found: FoundLength::of(history),
        })
    }

    /// The evidence behind a choice in words: `at 240,000 tokens, by 2 trainings made longer`.
    pub(crate) fn said(&self) -> String {
        format!(
            "at {} tokens, by {} trainings made longer",
            self.tokens_text(),
            self.longer
        )
    }

    /// Words on how sure it is that a trial has nearly the best loss at the full length, which rate is best there,
    /// where that is another, and what was found of the length. They begin with a semicolon, and are empty where
    /// nothing of it is known.
    pub(crate) fn outlook(&self, trial: &Trial) -> String {
        let Some(params) = self.settings.get(&trial.number) else {
            return String::new();
        };
        let tokens = self.tokens_text();
        let mut text = String::new();
        if let Some(probability) = self.model.probability_within(params, NEAR_BEST_LOSS) {
            // A model is never certain.
            let percent = (100.0 * probability).clamp(1.0, 99.0);
            let share = 100.0 * NEAR_BEST_LOSS;
            text +=
                &format!("; probability that this is within {share:.0}% of the best at {tokens} tokens: {percent:.0}%");
        }
        let own = trial.params.get(LEARNING_RATE).and_then(|rate| rate.as_f64());
        if let (Some(best), Some(own)) = (self.model.best_rate(params), own)
            && !(1.0 / ANOTHER_RATE..=ANOTHER_RATE).contains(&(best.median / own))
        {
            let [median, low, high] = [best.median, best.low, best.high].map(rate_text);
            text += &format!("; for {tokens} tokens the rate is best about {median} ({low} to {high})");
        }
        if let Some(found) = &self.found {
            text += &format!("; {}", found.said());
        }
        text
    }

    fn tokens_text(&self) -> String {
        grouped(&format!("{:.0}", self.tokens))
    }
}

/// The complete trials with the loss that is expected of them at the full length; `None` where too few trainings were made longer to
/// say it. A trial of them has no longer training any more: [`recommend`](super::recommend) takes their losses as they are.
pub fn at_full_length(history: &[Trial]) -> Option<Vec<Trial>> {
    Some(LongTrainings::of(history)?.trials)
}

/// The complete trials with a loss, by what they train: equal losses, to the last bit, are those of one training.
fn trainings(history: &[Trial]) -> Vec<Training<'_>> {
    let mut by_loss: BTreeMap<u64, Training<'_>> = BTreeMap::new();
    for trial in history {
        let TrialState::Complete { metrics } = &trial.state else {
            continue;
        };
        let Some(loss) = metrics.value(LOSS) else {
            continue;
        };
        let training = by_loss.entry(loss.to_bits()).or_insert(Training {
            trials: Vec::new(),
            loss,
            longer: None,
        });
        training.trials.push((trial, metrics));
        if let Some(longer) = metrics.value(LONGER_TOKENS).zip(metrics.value(LOSS_LONGER)) {
            let longest = training.longer.filter(|longest| longest.0 >= longer.0);
            training.longer = longest.or(Some(longer));
        }
    }
    by_loss.into_values().collect()
}

/// Parameters in which alone two trials of one training differ: they change no loss.
fn free_parameters(trainings: &[Training<'_>]) -> BTreeSet<String> {
    let mut free = BTreeSet::new();
    for training in trainings {
        for (index, (one, _)) in training.trials.iter().enumerate() {
            for (other, _) in &training.trials[..index] {
                let names: BTreeSet<&String> = one.params.keys().chain(other.params.keys()).collect();
                let mut differ = names
                    .into_iter()
                    .filter(|name| one.params.get(name) != other.params.get(name));
                if let (Some(name), None) = (differ.next(), differ.next()) {
                    free.insert(name.clone());
                }
            }
        }
    }
    free
}

fn without(params: &Params, free: &BTreeSet<String>) -> Params {
    let kept = params.iter().filter(|(name, _)| !free.contains(*name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}
