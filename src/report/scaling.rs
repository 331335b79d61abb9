//! Speed of a study's trials on several devices against trials on one, as it was measured, beside what was predicted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::lengths::percent;
use peft_tune_core::objective::{LINK_S, STEP_S, THROUGHPUT};
use peft_tune_core::predict::{LINK_BOUND, LINK_BOUND_HELP};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{Metrics, Trial, TrialNumber};

/// Trials on several devices whose speed a summary says, at most.
pub(super) const MOST_SCALED: usize = 8;

/// What measured scaling follows from.
#[derive(Clone, Copy, Debug)]
pub struct ScalingInput<'a> {
    pub trials: &'a [Trial],
    /// Recipes of the trials, as they are stored.
    pub recipes: &'a BTreeMap<TrialNumber, Value>,
    /// Predictions made before trials ran.
    pub predicted: &'a [(TrialNumber, String, f64)],
    /// Whether devices are processes that divide one processor.
    pub is_on_cpu: bool,
}

/// Speed of a trial on several devices against that of a trial on one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredScaling {
    pub trial: TrialNumber,
    /// The trial on one device.
    pub against: TrialNumber,
    pub devices: u64,
    /// Whether both trials have the same global batch, of which each device then has a part; else each device has the micro-batches of
    /// the one.
    pub shares_global_batch: bool,
    pub speedup: f64,
    /// Tokens a second of a device over those of the one alone.
    pub efficiency: f64,
    /// Efficiency by the predictions of both trials.
    pub predicted_efficiency: Option<f64>,
    /// Share of a step in which the first device waited for others' gradients.
    pub link_share: Option<f64>,
    /// Whether devices are processes that divide one processor.
    pub divides_processor: bool,
}

/// Trials on several devices, each beside the trial that differs in nothing else that costs; of those that cost alike the first.
pub fn measured_scaling(input: &ScalingInput<'_>) -> Vec<MeasuredScaling> {
    let known: Vec<(TrialNumber, &Metrics, Recipe)> =
        input.trials.iter().filter_map(|trial| measured(input, trial)).collect();
    let mut alone = BTreeMap::new();
    for (number, metrics, recipe) in known.iter().filter(|(_, _, recipe)| recipe.batch.devices == 1) {
        alone.entry(recipe.cost_key()).or_insert((*number, *metrics));
    }
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (number, metrics, recipe) in known.iter().filter(|(_, _, recipe)| recipe.batch.devices > 1) {
        if !seen.insert(recipe.cost_key()) {
            continue;
        }
        let on_one = [false, true].into_iter().find_map(|shares| {
            let other = alone.get(&on_one_device(recipe, shares).cost_key())?;
            Some((*other, shares))
        });
        let of = on_one.and_then(|((against, one), shares_global_batch)| {
            let devices = recipe.batch.devices as u64;
            let speedup = metrics.value(THROUGHPUT)? / one.value(THROUGHPUT)?;
            Some(MeasuredScaling {
                trial: *number,
                against,
                devices,
                shares_global_batch,
                speedup,
                efficiency: speedup / devices as f64,
                predicted_efficiency: predicted(input, *number)
                    .zip(predicted(input, against))
                    .map(|(all, one)| all / one / devices as f64),
                link_share: metrics
                    .value(LINK_S)
                    .zip(metrics.value(STEP_S))
                    .map(|(link, step)| link / step),
                divides_processor: input.is_on_cpu,
            })
        });
        found.extend(of);
    }
    found
}

/// A trial whose throughput is known, with its recipe.
fn measured<'a>(input: &ScalingInput<'a>, trial: &'a Trial) -> Option<(TrialNumber, &'a Metrics, Recipe)> {
    let metrics = trial.state.metrics()?;
    metrics.value(THROUGHPUT).filter(|speed| *speed > 0.0)?;
    let recipe = serde_json::from_value(input.recipes.get(&trial.number)?.clone()).ok()?;
    Some((trial.number, metrics, recipe))
}

/// The recipe on one device, with the whole global batch where it keeps that.
fn on_one_device(recipe: &Recipe, keeps_global_batch: bool) -> Recipe {
    let mut alone = recipe.on_one_device();
    if keeps_global_batch {
        alone.batch.gradient_accumulation *= recipe.batch.devices;
    }
    alone
}

/// Predicted throughput of a trial.
fn predicted(input: &ScalingInput<'_>, trial: TrialNumber) -> Option<f64> {
    let mut of_trial = input
        .predicted
        .iter()
        .filter(|(number, metric, _)| *number == trial && metric == THROUGHPUT);
    of_trial.next().map(|(.., value)| *value).filter(|value| *value > 0.0)
}

impl MeasuredScaling {
    /// Relative gain of throughput by devices that do not wait for each other, where that is the bottleneck.
    pub fn link_bound_gain(&self) -> Option<f64> {
        let share = self.link_share.filter(|share| *share < 1.0)?;
        self.is_link_bound().then(|| share / (1.0 - share))
    }

    /// Whether waits for other devices are the bottleneck.
    fn is_link_bound(&self) -> bool {
        self.link_share.is_some_and(|share| share >= LINK_BOUND)
    }
}

impl fmt::Display for MeasuredScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trial,
            against,
            devices,
            shares_global_batch,
            speedup,
            efficiency,
            predicted_efficiency,
            link_share,
            divides_processor,
        } = self;
        write!(
            f,
            "trial {trial} on {devices} is {speedup:.2} times as fast as trial {against} on one, an efficiency of {}",
            percent(*efficiency)
        )?;
        if let Some(predicted) = predicted_efficiency {
            write!(f, " ({} were predicted)", percent(*predicted))?;
        }
        if *shares_global_batch {
            f.write_str(", with a part of the same global batch on each")?;
        }
        if *divides_processor {
            f.write_str("; they are processes that divide one processor")?;
        }
        let Some(share) = link_share else { return Ok(()) };
        write!(f, "; {} of its step waits for others' gradients", percent(*share))?;
        match (self.is_link_bound(), divides_processor) {
            (false, _) => Ok(()),
            (true, true) => f.write_str(", or for processes that are not done yet"),
            (true, false) => write!(f, ": the link is the bottleneck; {LINK_BOUND_HELP}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::DataSettings;
    use peft_tune_core::study::{Params, TrialState};

    /// A trial with devices, micro-batches of a step on each, and throughput.
    fn trial(number: u64, tokens_per_s: f64) -> Trial {
        let metrics = [(THROUGHPUT, tokens_per_s), (STEP_S, 2.0), (LINK_S, 0.5)];
        Trial {
            number: TrialNumber(number),
            params: Params::new(),
            state: TrialState::Complete {
                metrics: metrics.into(),
            },
        }
    }

    fn recipe(devices: usize, gradient_accumulation: usize, rank: usize) -> Value {
        let mut recipe = Recipe::new("m", DataSettings::default());
        (recipe.batch.devices, recipe.batch.gradient_accumulation) = (devices, gradient_accumulation);
        recipe.adapter.as_mut().unwrap().rank = rank;
        serde_json::to_value(recipe).unwrap()
    }

    fn scaling(is_on_cpu: bool) -> Vec<MeasuredScaling> {
        let speeds = [100.0, 180.0, 170.0, 175.0, 90.0];
        let trials: Vec<Trial> = (0..).zip(speeds).map(|(number, speed)| trial(number, speed)).collect();
        let recipes = [
            recipe(1, 4, 8),
            recipe(2, 4, 8),
            recipe(2, 2, 8),
            // Costs as trial 1.
            recipe(2, 4, 8),
            // Nothing on one device differs from it in devices alone.
            recipe(2, 4, 16),
        ];
        let recipes = (0..).map(TrialNumber).zip(recipes).collect();
        let predicted = [(0, 100.0), (1, 190.0)];
        measured_scaling(&ScalingInput {
            trials: &trials,
            recipes: &recipes,
            predicted: &predicted.map(|(number, speed)| (TrialNumber(number), THROUGHPUT.to_owned(), speed)),
            is_on_cpu,
        })
    }

    #[test]
    fn trials_on_several_devices_stand_beside_those_that_differ_in_nothing_else() {
        let found = scaling(false);
        let pairs: Vec<_> = found
            .iter()
            .map(|one| (one.trial.0, one.against.0, one.shares_global_batch))
            .collect();
        assert_eq!(pairs, [(1, 0, false), (2, 0, true)]);
        assert_eq!((found[0].speedup, found[0].efficiency), (1.8, 0.9));
        assert_eq!(
            (found[0].predicted_efficiency, found[1].predicted_efficiency),
            (Some(0.95), None)
        );
        assert_eq!(found[0].link_share, Some(0.25));
        // Steps of 1.5 s in place of 2.
        let gain = found[0].link_bound_gain().unwrap();
        assert!((gain - 1.0 / 3.0).abs() < 1e-12, "{gain}");
        let text = found[0].to_string();
        assert!(
            text.starts_with("trial 1 on 2 is 1.80 times as fast as trial 0 on one, an efficiency of 90")
                && text.contains("the link is the bottleneck"),
            "{text}"
        );
        assert!(found[1].to_string().contains("same global batch"), "{}", found[1]);
    }

    #[test]
    fn processes_of_one_processor_are_called_so_and_wait_for_no_link() {
        let found = scaling(true);
        let text = found[0].to_string();
        assert!(
            text.contains("divide one processor") && text.ends_with("processes that are not done yet"),
            "{text}"
        );
    }
}
