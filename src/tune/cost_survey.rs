//! A study seen before it runs: how many settings there are, which fit, what they cost, how long the search will take.

use std::collections::HashSet;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use rayon::prelude::*;

use super::forecast::serve_ms;
use super::full_training::{FullTraining, paid_devices, steps_of};
use super::{Forecast, MemoryLimit};
use crate::space::{Backend, Study, recipe_for};
use peft_tune_core::predict::{Correction, Imbalance, Prediction, Uncertain};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{MeasurePlan, Params};
use peft_tune_search::{Settings, pareto};

/// Largest space whose settings are all looked at; a larger one is drawn from.
const MOST_SETTINGS: u64 = 1 << 20;
/// Settings that are drawn from a space that is continuous or larger.
const DRAWN: u64 = 1 << 14;
/// Largest space that a quick look takes whole, and settings that it draws from a larger one.
const QUICK: u64 = 1 << 11;
/// Settings that are looked at instead where another stack trains, and quickly: one takes milliseconds, as its step has all layers.
const IN_STACK: u64 = 1 << 12;
const QUICK_IN_STACK: u64 = 1 << 9;
/// Most settings of a parallel task.
const BLOCK: u64 = 512;

/// A setting with what it is expected to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyedSetting {
    /// The sampled values that can change cost.
    pub params: Params,
    pub prediction: Prediction,
    pub tokens_per_s: Uncertain,
    pub peak_bytes: Uncertain,
    /// Milliseconds of a served token, where the study counts them.
    pub serve_ms: Option<Uncertain>,
    /// Whether the predicted memory keeps the limit.
    pub fits: bool,
}

impl SurveyedSetting {
    /// The training that the study is for, at this setting's speed; `None` where that or the length in tokens is not known.
    pub fn full_training(&self, forecast: &Forecast) -> Option<FullTraining> {
        FullTraining::predicted(forecast, &self.params, self.prediction.tokens, self.tokens_per_s.value)
    }

    /// Tokens a second of each device that is paid.
    pub fn tokens_per_device_s(&self, forecast: &Forecast) -> f64 {
        let recipe = recipe_for(forecast.study(), &self.params);
        let devices = recipe.map_or(1, |recipe| paid_devices(forecast, &recipe));
        self.tokens_per_s.value / devices as f64
    }
}

/// Costs that are expected of a study's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct CostSurvey {
    /// Settings of the space; `None` where it is continuous.
    pub size: Option<u64>,
    /// Settings that were looked at.
    pub looked_at: u64,
    /// Settings looked at that make a recipe which fits the model.
    pub predicted: u64,
    /// Settings looked at that keep the memory limit as predicted.
    pub fitting: u64,
    /// Settings above the limit by no more than the prediction's error: a search tries them too.
    pub perhaps_fitting: u64,
    /// Memory limit that a trial must keep.
    pub limit: Option<MemoryLimit>,
    /// Settings that differ in cost, highest throughput first.
    pub settings: Vec<SurveyedSetting>,
    /// Indices into `settings` of those that fit and are beaten by none in both throughput and memory.
    pub front: Vec<usize>,
    /// Seconds of a trial that runs all phases: the mean over what fits, loading not counted.
    pub trial_s: Option<f64>,
    /// Seconds of the whole search, within its budget of time.
    pub search_s: Option<f64>,
    /// Cost of crowding at a mixture's experts, for the fastest setting that fits.
    pub imbalance: Option<Imbalance>,
    /// Reason of the first setting that cannot be predicted.
    pub first_reason: Option<String>,
}

/// The settings of one part of the space.
#[derive(Default)]
struct SurveyedRange {
    looked_at: u64,
    predicted: u64,
    fitting: u64,
    perhaps_fitting: u64,
    settings: Vec<(u64, Params, Prediction)>,
    first_reason: Option<String>,
}

impl CostSurvey {
    /// Looks at all settings of `study`, or at a draw from them.
    pub fn new(study: &Study, forecast: &Forecast) -> Self {
        match forecast.stack() {
            None => Self::of_some(study, forecast, MOST_SETTINGS, DRAWN),
            Some(_) => Self::of_some(study, forecast, IN_STACK, IN_STACK),
        }
    }

    /// A quick look, at some settings at most.
    pub fn quick(study: &Study, forecast: &Forecast) -> Self {
        match forecast.stack() {
            None => Self::of_some(study, forecast, QUICK, QUICK),
            Some(_) => Self::of_some(study, forecast, QUICK_IN_STACK, QUICK_IN_STACK),
        }
    }

    /// Tokens a second of the fastest setting that fits; `None` where the device's speed is not known.
    pub fn fastest(&self) -> Option<f64> {
        let fitting = self.settings.iter().find(|one| one.fits)?;
        Some(fitting.tokens_per_s.value).filter(|speed| *speed > 0.0)
    }

    /// Looks at all settings where they are at most so many, else at so many that are drawn.
    fn of_some(study: &Study, forecast: &Forecast, most: u64, drawn_settings: u64) -> Self {
        let size = study.space.cardinality();
        let all = Settings::new(&study.space).filter(|settings| settings.len() <= most);
        let count = all.as_ref().map_or(drawn_settings, Settings::len);
        let params = |index: u64| match &all {
            Some(settings) => settings.nth(index),
            None => Some(drawn(study, index)),
        };
        let correction = forecast.correction();
        let block_size = count.div_ceil(rayon::current_num_threads() as u64).clamp(1, BLOCK);
        let parts: Vec<SurveyedRange> = (0..count.div_ceil(block_size))
            .into_par_iter()
            .map(|block| {
                let indices = block * block_size..((block + 1) * block_size).min(count);
                SurveyedRange::of(forecast, &correction, indices.filter_map(params))
            })
            .collect();
        let mut survey = Self {
            size,
            looked_at: parts.iter().map(|part| part.looked_at).sum(),
            predicted: parts.iter().map(|part| part.predicted).sum(),
            fitting: parts.iter().map(|part| part.fitting).sum(),
            perhaps_fitting: parts.iter().map(|part| part.perhaps_fitting).sum(),
            limit: forecast.limit(),
            settings: Vec::new(),
            front: Vec::new(),
            trial_s: None,
            search_s: None,
            imbalance: None,
            first_reason: parts.iter().find_map(|part| part.first_reason.clone()),
        };
        survey.take(parts, forecast, &correction);
        survey.estimate_time(study, forecast);
        survey
    }

    /// Keeps one setting of each cost, best throughput first, and finds the front.
    fn take(&mut self, parts: Vec<SurveyedRange>, forecast: &Forecast, correction: &Correction) {
        let mut met = HashSet::new();
        let mut fastest: Option<(f64, Params)> = None;
        for (key, params, prediction) in parts.into_iter().flat_map(|part| part.settings) {
            if met.insert(key) {
                let one = expected(forecast, correction, &params, prediction);
                let speed = one.tokens_per_s.value;
                if one.fits && fastest.as_ref().is_none_or(|(most, _)| speed > *most) {
                    fastest = Some((speed, params));
                }
                self.settings.push(one);
            }
        }
        self.imbalance = fastest.and_then(|(_, params)| forecast.imbalance(&params));
        self.sort_by_speed();
        self.front = self.front_of_fitting();
    }

    /// Puts the fastest settings first; where no speed is known, the frugal ones.
    fn sort_by_speed(&mut self) {
        let by_memory = |a: &SurveyedSetting, b: &SurveyedSetting| a.peak_bytes.value.total_cmp(&b.peak_bytes.value);
        self.settings.sort_by(|a, b| {
            let by_speed = b.tokens_per_s.value.total_cmp(&a.tokens_per_s.value);
            by_speed.then_with(|| by_memory(a, b))
        });
    }

    /// Indices of the settings that fit and are beaten by none in both throughput and memory.
    fn front_of_fitting(&self) -> Vec<usize> {
        let fitting: Vec<usize> = (0..self.settings.len())
            .filter(|index| self.settings[*index].fits)
            .collect();
        let values: Vec<[f64; 2]> = fitting
            .iter()
            .map(|index| {
                let one = &self.settings[*index];
                [-one.tokens_per_s.value, one.peak_bytes.value]
            })
            .collect();
        let points: Vec<&[f64]> = values.iter().map(<[f64; 2]>::as_slice).collect();
        let mut front: Vec<usize> = pareto::front(&points).into_iter().map(|index| fitting[index]).collect();
        front.sort_unstable();
        front
    }

    fn estimate_time(&mut self, study: &Study, forecast: &Forecast) {
        let fitting: Vec<f64> = self
            .settings
            .iter()
            .filter(|one| one.fits && one.tokens_per_s.value > 0.0)
            .filter_map(|one| trial_s(forecast, &one.params, one.prediction.tokens, one.tokens_per_s.value))
            .collect();
        if fitting.is_empty() {
            return;
        }
        let mean = fitting.iter().sum::<f64>() / fitting.len() as f64;
        self.trial_s = Some(mean);
        let trials = study
            .budget
            .trials
            .map(|trials| trials.min(self.size.unwrap_or(u64::MAX)));
        let whole = trials.map(|trials| trials as f64 * mean);
        self.search_s = match (whole, study.budget.time_s) {
            (Some(whole), Some(limit)) => Some(whole.min(limit)),
            (whole, limit) => whole.or(limit),
        };
    }
}

impl SurveyedRange {
    fn of(forecast: &Forecast, correction: &Correction, settings: impl Iterator<Item = Params>) -> Self {
        let (mut part, mut met) = (Self::default(), HashSet::new());
        for params in settings {
            part.looked_at += 1;
            match forecast.predict(&params) {
                Ok(prediction) => {
                    part.predicted += 1;
                    let fits = forecast.keeps_limit(correction.peak_bytes(&prediction).value);
                    part.fitting += u64::from(fits);
                    part.perhaps_fitting += u64::from(!fits && forecast.does_not_fit(&prediction).is_none());
                    let key = forecast.key(&params);
                    if met.insert(key) {
                        part.settings.push((key, params, prediction));
                    }
                }
                Err(error) => {
                    part.first_reason.get_or_insert_with(|| error.to_string());
                }
            }
        }
        part
    }
}

/// Setting number `index` of a draw that the study's seed decides.
fn drawn(study: &Study, index: u64) -> Params {
    let mut random = Pcg64::seed_from_u64(study.seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let point: Vec<f64> = (0..study.space.dimensions()).map(|_| random.random()).collect();
    study.space.params_at(&point)
}

fn expected(forecast: &Forecast, correction: &Correction, params: &Params, prediction: Prediction) -> SurveyedSetting {
    let peak_bytes = correction.peak_bytes(&prediction);
    SurveyedSetting {
        params: forecast.cost_params(params),
        tokens_per_s: correction.tokens_per_s(&prediction),
        fits: forecast.keeps_limit(peak_bytes.value),
        peak_bytes,
        serve_ms: serve_ms(&prediction),
        prediction,
    }
}

/// Share of a step's micro-batches that a profile phase of a recipe has.
pub(super) fn measured_share(study: &Study, recipe: &Recipe) -> f64 {
    match study.backend {
        // Its steps are whole ones.
        Backend::Trl(_) => 1.0,
        Backend::Native | Backend::Command(_) => {
            MeasurePlan::micro_batches(recipe) as f64 / recipe.batch.micro_batches() as f64
        }
    }
}

/// Seconds of a trial: the step on the longest rows, the profile phase with half of the warm-up that it may take where it is no part
/// of the training, then the training; evaluation is taken as a tenth of it, and the same training in F32 as long again. Answers are
/// not predicted. `None` where a training is epochs of rows that are not known, and for params that make no recipe.
pub(super) fn trial_s(forecast: &Forecast, params: &Params, step_tokens: f64, tokens_per_s: f64) -> Option<f64> {
    let study = forecast.study();
    let recipe = recipe_for(study, params).ok()?;
    let train_steps = match study.plan.train.as_ref().map(|train| train.length) {
        None => 0.0,
        Some(length) => steps_of(forecast, &recipe, length, step_tokens)?,
    };
    let profile_steps = study.plan.measure.as_ref().map_or(0.0, |measure| {
        let train = study.plan.train.as_ref();
        match train.and_then(|train| measure.within(train, train_steps as u64)) {
            Some(_) => 1.0,
            None => {
                let steps = measure.steps as f64 + measure.max_warmup_steps as f64 / 2.0;
                1.0 + measured_share(study, &recipe) * steps
            }
        }
    });
    let plan = study.plan.train.as_ref();
    let trainings = if plan.is_some_and(|plan| plan.accuracy.fp32_training) {
        2.0
    } else {
        1.0
    };
    Some((profile_steps + 1.1 * trainings * train_steps) * step_tokens / tokens_per_s)
}
