//! Trials by the loss that is expected of them at the full length, where some trainings were made longer: what is best after
//! a short training need not be after a long one.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::found_length::FoundLength;
use super::length::{FullLength, LEARNING_RATE, Trained};
use super::loss_margins::{LOSS_BY_CHANCE, NEAR_BEST_LOSS};
use super::reason::{grouped, rate_text};
use peft_tune_core::objective::{FULL_TOKENS, LONGER_TOKENS, LOSS, LOSS_BEFORE, LOSS_LONGER, TRAIN_TOKENS};
use peft_tune_core::study::{Metrics, Params, Trial, TrialNumber, TrialState};

/// Trainings that are evidence: those made longer, and of the others those with the least losses. The rest, however many, are too far
/// from the best to become it, and remain to be chosen by whoever asks for other things than the least loss.
const MOST_TRAININGS: usize = 60;
/// A learning rate is said to be another than the best where it is that many times as high, or as low.
const ANOTHER_RATE: f64 = 1.25;
/// Share of the loss that stands for one that diverged above which a longer training did so: repeats of the trial may have moved its
/// own loss since. No sound training ends anywhere near it.
const DIVERGED: f64 = 0.9;

/// Evidence of a study's trainings on the loss at the full length.
pub(crate) struct LongTrainings {
    /// The complete trials, with the loss that is expected of them. Those that diverged in a longer training are left out, but where
    /// there are no others.
    pub(crate) trials: Vec<Trial>,
    model: FullLength,
    /// Setting that each trial trains whose training is evidence: the setting of the first that trains the same, without what changes
    /// no loss.
    settings: BTreeMap<TrialNumber, Params>,
    /// Loss that is expected of a training which is no evidence, as a multiple of its own.
    of_others: f64,
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
    /// Whether that diverged.
    diverged: bool,
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
        let others = trainings.split_off(MOST_TRAININGS.min(trainings.len()));
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
        let of_each = trainings
            .iter()
            .flat_map(|one| one.trials.iter().map(move |of| (one, of.0)));
        let complete: Vec<(&Training<'_>, &Trial)> = of_each.collect();
        let of_trials: Option<Vec<&Params>> = complete.iter().map(|(_, trial)| settings.get(&trial.number)).collect();
        let losses = model.prudent_losses(&of_trials?).into_iter().zip(complete);
        let mut expected: Vec<(&Training<'_>, &Trial, f64)> = losses
            .filter_map(|(loss, (one, trial))| Some((one, trial, loss?)))
            .collect();
        // Nothing is known of the others but that they learnt less: they are taken to fare like the worst that is evidence.
        let shares = expected.iter().filter(|(one, ..)| one.longer.is_none());
        let shares = shares.map(|(one, _, loss)| loss / one.loss);
        let of_others = shares.max_by(f64::total_cmp).unwrap_or(1.0);
        for one in &others {
            let loss = (of_others * one.loss).min(f64::MAX);
            expected.extend(one.trials.iter().map(|(trial, _)| (one, *trial, loss)));
        }
        if expected.iter().any(|(one, ..)| !one.diverged) {
            expected.retain(|(one, ..)| !one.diverged);
        }
        let mut trials: Vec<Trial> = expected
            .into_iter()
            .filter_map(|(_, trial, loss)| with_loss(trial, loss))
            .collect();
        trials.sort_by_key(|trial| trial.number);
        Some(Self {
            trials,
            model,
            settings,
            of_others,
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
        let mut text = match self.settings.get(&trial.number) {
            Some(params) => self.outlook_of(params, trial),
            None => format!(
                "; that loss is {:.2} times its own, as it is none of the {MOST_TRAININGS} trainings that are evidence",
                self.of_others
            ),
        };
        if let Some(found) = &self.found {
            text += &format!("; {}", found.said());
        }
        text
    }

    /// Words on a trial whose training is evidence, of this setting.
    fn outlook_of(&self, params: &Params, trial: &Trial) -> String {
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
        text
    }

    fn tokens_text(&self) -> String {
        grouped(&format!("{:.0}", self.tokens))
    }
}

/// Loss that a setting with these metrics counts as having after a longer training that diverged: that of its trial on top of
/// the one before any training. It is at least twice the trial's, and of two settings the worse one's is the greater.
pub fn diverged_loss(metrics: &Metrics) -> Option<f64> {
    let loss = metrics.value(LOSS)?;
    Some(loss + metrics.value(LOSS_BEFORE).map_or(loss, |before| before.max(loss)))
}

/// The trials that would train the same as one whose longer training diverged.
pub(crate) fn diverged(history: &[Trial]) -> BTreeSet<TrialNumber> {
    let diverged = trainings(history).into_iter().filter(|one| one.diverged);
    diverged
        .flat_map(|one| one.trials.into_iter().map(|(trial, _)| trial.number))
        .collect()
}

/// Whether the longer training of a trial with these metrics diverged.
fn is_diverged(metrics: &Metrics) -> bool {
    let losses = metrics.value(LOSS_LONGER).zip(diverged_loss(metrics));
    losses.is_some_and(|(longer, diverged)| longer >= DIVERGED * diverged)
}

/// A complete trial with the loss that is expected of it, as if that were its own.
fn with_loss(trial: &Trial, loss: f64) -> Option<Trial> {
    let mut metrics = trial.state.metrics()?.clone();
    metrics.retain(|name| name != LOSS_LONGER);
    metrics.insert(LOSS, loss);
    Some(Trial {
        state: TrialState::Complete { metrics },
        ..trial.clone()
    })
}

/// The complete trials with the loss that is expected of them at the full length, without those that diverged on the way there but
/// where there are no others; `None` where too few trainings were made longer to say it. A trial of them has no longer training any
/// more: `recommend` takes their losses as they are.
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
            diverged: false,
        });
        training.trials.push((trial, metrics));
        training.diverged |= is_diverged(metrics);
        if let Some(longer) = metrics.value(LONGER_TOKENS).zip(metrics.value(LOSS_LONGER)) {
            let longest = training.longer.filter(|longest| longest.0 >= longer.0);
            training.longer = longest.or(Some(longer));
        }
    }
    by_loss.into_values().collect()
}

/// Pairs of trials that differ in one parameter alone, by what became of their losses.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    /// Equal to the last bit.
    same: usize,
    /// No further apart than chance puts two trainings of one setting, as where repeats moved the loss of one of them.
    near: usize,
    /// Further apart than that.
    far: usize,
}

/// Parameters that change no loss, as the trials tell: of the pairs that differ in one of them alone, no fewer have the
/// same loss than have another one, and none a loss that chance does not explain. One pair of equal losses says nothing
/// against others: a limit that no step of theirs reached changes nothing there either, and elsewhere it does.
fn free_parameters(trainings: &[Training<'_>]) -> BTreeSet<String> {
    let mut trials: Vec<(&Trial, f64)> = Vec::new();
    for one in trainings {
        trials.extend(one.trials.iter().map(|(trial, _)| (*trial, one.loss)));
    }
    let mut pairs: BTreeMap<&String, Pairs> = BTreeMap::new();
    for (index, &(one, loss)) in trials.iter().enumerate() {
        for &(other, of_other) in &trials[..index] {
            let Some(name) = lone_difference(&one.params, &other.params) else {
                continue;
            };
            let told = pairs.entry(name).or_default();
            let apart = (loss - of_other).abs();
            match loss.to_bits() == of_other.to_bits() {
                true => told.same += 1,
                false if apart <= LOSS_BY_CHANCE * loss.min(of_other) => told.near += 1,
                false => told.far += 1,
            }
        }
    }
    let is_free = |told: &Pairs| told.far == 0 && told.same > 0 && told.same >= told.near;
    let free = pairs.into_iter().filter(|(_, told)| is_free(told));
    free.map(|(name, _)| name.clone()).collect()
}

/// The one parameter in which two settings differ; `None` where there is none, or more than one.
fn lone_difference<'a>(one: &'a Params, other: &'a Params) -> Option<&'a String> {
    let names = one.keys().chain(other.keys().filter(|name| !one.contains_key(name)));
    let mut differ = names.filter(|name| one.get(name) != other.get(name));
    let first = differ.next()?;
    differ.next().is_none().then_some(first)
}

fn without(params: &Params, free: &BTreeSet<String>) -> Params {
    let kept = params.iter().filter(|(name, _)| !free.contains(*name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::trial;
    use peft_tune_core::study::ParamValue;

    /// Trials of a rank, a limit on gradients and a micro-batch, with their losses.
    fn free(rows: &[(i64, f64, i64, f64)]) -> Vec<String> {
        let one = |(number, (rank, limit, micro_batch, loss)): (usize, &(i64, f64, i64, f64))| {
            let params = Params::from([
                ("rank".to_owned(), ParamValue::Int(*rank)),
                ("max_grad_norm".to_owned(), ParamValue::Float(*limit)),
                ("micro_batch".to_owned(), ParamValue::Int(*micro_batch)),
            ]);
            let metrics = [(LOSS, *loss)].into();
            trial(number, params, TrialState::Complete { metrics })
        };
        let history: Vec<Trial> = rows.iter().enumerate().map(one).collect();
        free_parameters(&trainings(&history)).into_iter().collect()
    }

    #[test]
    fn a_parameter_is_free_where_it_changes_no_loss_and_not_where_it_changed_none_once() {
        let equal = [(8, 1.0, 4, 2.0), (8, 1.0, 2, 2.0), (8, 9.0, 4, 2.0)];
        assert_eq!(free(&equal), ["max_grad_norm", "micro_batch"]);
        // With another rank the limit counts; of the ranks no two are equal.
        let mut rows = equal.to_vec();
        rows.extend([(16, 1.0, 4, 1.9), (16, 9.0, 4, 1.8)]);
        assert_eq!(free(&rows), ["micro_batch"]);
        // A repeat moved the loss of one trial, and not that of its variant.
        rows.extend([(32, 1.0, 4, 1.7), (32, 1.0, 2, 1.71)]);
        assert_eq!(free(&rows), ["micro_batch"]);
        rows.extend([(64, 1.0, 4, 1.6), (64, 1.0, 2, 1.61)]);
        assert!(free(&rows).is_empty());
    }
}
